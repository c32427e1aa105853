// SPDX-License-Identifier: Apache-2.0
// Writes plans down.
#pragma once

#include <vector>

#include "collectives/plan.h"

namespace smdist {

// Part of a region.
Region part_of(const Region& region, size_t offset, size_t bytes);

// Cuts a length in pieces: calls visit(offset, bytes, number) for each.
template <typename Visit>
void for_each_piece(size_t bytes, size_t piece_bytes, Visit visit) {
  uint32_t number = 0;
  for (size_t offset = 0; offset < bytes; offset += piece_bytes) {
    visit(offset, bytes - offset < piece_bytes ? bytes - offset : piece_bytes, number++);
  }
}

// Thread safety: none.
class PlanBuilder final {
 public:
  PlanBuilder(int rank, int size) : rank_(rank), size_(size) {}

  // All other ranks, beginning with the next.
  std::vector<int> rotated_peers() const;

  // Each returns the index of the new step; empty messages and copies are left out.
  // A receive that comes after other steps grants a send, which has to wait for it.
  uint32_t send(int peer, uint32_t tag, const Region& from, std::vector<uint32_t> after = {},
                bool awaits_grant = false);
  uint32_t receive(int peer, uint32_t tag, const Region& into, std::vector<uint32_t> after = {});
  void copy(const Region& from, const Region& to);
  uint32_t reduce(Stage stage, std::vector<Region> sources, const Region& to,
                  std::vector<uint32_t> after);
  void signal(int peer);  // an empty message
  void await_signal(int peer);

  // Scratch memory, aligned to a cache line.
  Region scratch(size_t bytes);

  Plan finish() { return std::move(plan_); }

 private:
  uint32_t add(Step step);

  const int rank_;
  const int size_;
  Plan plan_;
};

}  // namespace smdist
