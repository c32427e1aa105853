// SPDX-License-Identifier: Apache-2.0
// A numbered communicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "collectives/hosts.h"

namespace smdist {

// Thread safety: constant after construction, but for the counter.
struct Group {
  // group_hosts: of the members, in their order.
  Group(uint32_t group_id, std::vector<int> group_members, int own_rank, Hosts group_hosts,
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
  const int rank;                  // ours, in the group
  const Hosts hosts;
  const bool is_on_one_host;
  const uint32_t window;              // see Cut
  std::atomic<uint64_t> pending = 0;  // operations submitted and not yet complete
};

}  // namespace smdist
