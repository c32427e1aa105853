// SPDX-License-Identifier: Apache-2.0
// A numbered group of ranks (a communicator in MPI).
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "collectives/host_topology.h"

namespace smdist {

// A group of ranks.
//
// Thread safety: constant after construction, except for `pending`, which is atomic.
struct Group {
  // group_hosts: placement of the members on hosts.
  Group(uint32_t group_id, std::vector<int> group_members, int own_rank, HostTopology group_hosts,
        bool is_all_on_one_host, uint32_t group_window)
      : id(group_id),
        members(std::move(group_members)),
        rank(own_rank),
        hosts(std::move(group_hosts)),
        is_on_one_host(is_all_on_one_host),
        window(group_window) {}

  int size() const { return static_cast<int>(members.size()); }

  const uint32_t id;
  const std::vector<int> members;  // engine ranks, by rank in the group
  const int rank;                  // this rank's number in the group
  const HostTopology hosts;
  const bool is_on_one_host;
  const uint32_t window;              // see Segmentation
  std::atomic<uint64_t> pending = 0;  // number of operations that have not ended
};

}  // namespace smdist
