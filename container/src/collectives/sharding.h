// SPDX-License-Identifier: Apache-2.0
// Partition of a buffer into one shard per rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace smdist {

// Shards begin at multiples of a cache line from the begin of the buffer, so that no element is
// split and, in an aligned buffer, no two owners write one line.
constexpr size_t kShardAlignment = 64;

using Weights = std::vector<uint32_t>;

Weights equal_weights(int size);

// Returns the size + 1 boundaries of `size` shards of a buffer of `bytes` bytes. Shard i is
// [boundary i, boundary i + 1); its length is proportional to its weight, to within one cache
// line. All boundaries but the last are multiples of kShardAlignment. Requires: at least one
// weight above zero.
std::vector<size_t> shard_boundaries(size_t bytes, const Weights& weights);

}  // namespace smdist
