// SPDX-License-Identifier: Apache-2.0
// A group of ranks, known by its number (a communicator in MPI).
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "collectives/host_topology.h"

namespace smdist {

// Thread safety: constant after construction, except for the counter, which is atomic.
struct Group {
  // group_hosts: the host of each member, in the order of members.
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
  std::atomic<uint64_t> pending = 0;  // operations that were submitted and have not ended
};

}  // namespace smdist
