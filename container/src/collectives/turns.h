// SPDX-License-Identifier: Apache-2.0
// Who sums a buffer that is not worth being cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/shards.h"

namespace smdist {

// Gives every buffer to one rank, so that all have summed as many bytes as their
// weights allow them. Ranks that see the same buffers in the same order choose the
// same owners.
//
// Thread safety: none.
class Turns final {
 public:
  // The owner of a buffer of so many bytes. Requires: a weight above zero, and
  // every time the same number of weights.
  int next(size_t bytes, const Weights& weights);

 private:
  std::vector<uint64_t> given_;  // bytes, by rank
};

}  // namespace smdist
