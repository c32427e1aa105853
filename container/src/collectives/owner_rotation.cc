// SPDX-License-Identifier: Apache-2.0
#include "collectives/owner_rotation.h"

namespace smdist {

// Chooses the rank with the smallest given bytes / weight, and the lowest rank among equals. The
// length of this buffer has no influence, so that ranks with buffers of different lengths choose
// the same owner and can detect the mismatch.
int OwnerRotation::next(size_t bytes, const Weights& weights) {
  using Wide = unsigned __int128;
  given_.resize(weights.size());
  size_t best = 0;
  for (size_t rank = 0; rank < weights.size(); ++rank) {
    const bool is_better = weights[best] == 0 ||
                           Wide{given_[rank]} * weights[best] < Wide{given_[best]} * weights[rank];
    if (weights[rank] > 0 && is_better) best = rank;
  }
  given_[best] += bytes;
  return static_cast<int>(best);
}

}  // namespace smdist
