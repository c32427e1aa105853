// SPDX-License-Identifier: Apache-2.0
// Construction of plans.
#pragma once

#include <vector>

#include "collectives/plan.h"

namespace smdist {

// Returns a part of a region.
Region part_of(const Region& region, size_t offset, size_t bytes);

// Cuts a length into chunks and calls visit(offset, bytes, number) for each.
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
  PlanBuilder(int rank, int size) : rank_(rank), size_(size) {}

  // Returns all other ranks, beginning with the next one.
  std::vector<int> rotated_peers() const;

  // Each function appends a step and returns its index; empty messages and copies are omitted. A
  // receive with dependencies sends a credit; its send must be added with awaits_credit.
  uint32_t send(int peer, uint32_t tag, const Region& from, std::vector<uint32_t> after = {},
                bool awaits_credit = false);
  uint32_t receive(int peer, uint32_t tag, const Region& into, std::vector<uint32_t> after = {});
  void copy(const Region& from, const Region& to);
  uint32_t reduce(ReduceStage stage, std::vector<Region> sources, const Region& to,
                  std::vector<uint32_t> after);
  void signal(int peer);  // an empty message
  void await_signal(int peer);

  // Returns a new region of scratch memory, aligned to a cache line.
  Region scratch(size_t bytes);

  Plan finish() { return std::move(plan_); }

 private:
  uint32_t add(Step step);

  const int rank_;
  const int size_;
  Plan plan_;
};

}  // namespace smdist
