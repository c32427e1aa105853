// SPDX-License-Identifier: Apache-2.0
// Builder of plans.
#pragma once

#include <vector>

#include "collectives/plan.h"

namespace smdist {

// Return a range of a region; offset: from the beginning of the region.
Region part_of(const Region& region, size_t offset, size_t bytes);

// Split a length into chunks and call visit(offset, bytes, number) for each, in order.
template <typename Visit>
void for_each_chunk(size_t bytes, size_t chunk_bytes, Visit visit) {
  uint32_t number = 0;
  for (size_t offset = 0; offset < bytes; offset += chunk_bytes) {
    visit(offset, bytes - offset < chunk_bytes ? bytes - offset : chunk_bytes, number++);
  }
}

// Appends steps to the plan of one rank.
//
// Thread safety: none.
class PlanBuilder final {
 public:
  PlanBuilder(int rank, int size);

  // Return all other ranks in the order rank + 1, rank + 2, ..., modulo the number of ranks.
  std::vector<int> rotated_peers() const;

  // Append a step and return its index. Messages and copies of 0 bytes are omitted. after: steps
  // that must be complete before. If a receive has dependencies, the matching send of the other
  // rank must have awaits_credit.
  uint32_t send(int peer, uint32_t tag, const Region& from, std::vector<uint32_t> after = {},
                bool awaits_credit = false);
  uint32_t receive(int peer, uint32_t tag, const Region& into, std::vector<uint32_t> after = {});
  void copy(const Region& from, const Region& to);
  uint32_t reduce(ReduceStage stage, std::vector<Region> sources, const Region& to,
                  std::vector<uint32_t> after);
  // Append the send, or the receive, of an empty message.
  void signal(int peer);
  void await_signal(int peer);

  // Return a new region of scratch memory, aligned to a cache line.
  Region scratch(size_t bytes);

  // Return the plan. Call last.
  Plan finish() { return std::move(plan_); }

 private:
  uint32_t add(Step step);

  const int rank_;
  const int size_;
  Plan plan_;
};

}  // namespace smdist
