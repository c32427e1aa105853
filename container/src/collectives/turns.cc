// SPDX-License-Identifier: Apache-2.0
#include "collectives/turns.h"

namespace smdist {

// The least given / weight; of equals the lowest rank. This buffer's length does not
// count, so that ranks which disagree about it still meet at one owner.
int Turns::next(size_t bytes, const Weights& weights) {
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
