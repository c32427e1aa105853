// SPDX-License-Identifier: Apache-2.0
// Choice of the rank that sums a short buffer alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/sharding.h"

namespace smdist {

// Assigns every buffer to one owner, in rotation, so that each rank sums a number of bytes in
// proportion to its weight. Ranks that make the same calls in the same order get the same owners.
//
// Thread safety: none.
class OwnerRotation final {
 public:
  // Return the owner, a rank, of the next buffer, which has `bytes` bytes. weights: relative share
  // of each rank. Requires: a weight above zero, and the same number of weights in every call.
  int next(size_t bytes, const Weights& weights);

 private:
  std::vector<uint64_t> given_;  // bytes assigned so far, by rank
};

}  // namespace smdist
