// SPDX-License-Identifier: Apache-2.0
#include "collectives/sharding.h"

#include <numeric>

namespace smdist {

Weights equal_weights(int size) { return Weights(static_cast<size_t>(size), 1); }

std::vector<size_t> shard_boundaries(size_t bytes, const Weights& weights) {
  using Wide = unsigned __int128;  // bytes x weight may not fit in 64 bits
  const uint64_t total = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  std::vector<size_t> boundaries = {0};
  uint64_t passed = 0;
  for (const uint32_t weight : weights) {
    passed += weight;
    const size_t exact = static_cast<size_t>(Wide{bytes} * passed / total);
    boundaries.push_back(passed == total ? bytes : exact / kShardAlignment * kShardAlignment);
  }
  return boundaries;
}

}  // namespace smdist
