// SPDX-License-Identifier: Apache-2.0
// A numbered communicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace smdist {

// Thread safety: constant after construction, but for the counter.
struct Group {
  Group(uint32_t group_id, std::vector<int> group_members, int own_rank)
      : id(group_id), members(std::move(group_members)), rank(own_rank) {}

  int size() const { return static_cast<int>(members.size()); }

  const uint32_t id;
  const std::vector<int> members;     // engine ranks, by rank in the group
  const int rank;                     // ours, in the group
  std::atomic<uint64_t> pending = 0;  // operations submitted and not yet complete
};

}  // namespace smdist
