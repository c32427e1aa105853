// SPDX-License-Identifier: Apache-2.0
// Choice of the rank that sums a short buffer alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/sharding.h"

namespace smdist {

// Assigns every buffer to one owner, in rotation, so that the bytes summed by each rank are in
// proportion to its weight. Ranks that make the same calls in the same order choose the same
// owners.
//
// Thread safety: none.
class OwnerRotation final {
 public:
  // Returns the owner of a buffer of `bytes` bytes. Requires: a weight above zero, and the same
  // number of weights in every call.
  int next(size_t bytes, const Weights& weights);

 private:
  std::vector<uint64_t> given_;  // bytes assigned so far, by rank
};

}  // namespace smdist
