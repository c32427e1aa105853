// SPDX-License-Identifier: Apache-2.0
// Division of a buffer into one shard per rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace smdist {

// Alignment of shards in bytes: each begins at a multiple of a cache line from the beginning of the
// buffer. So no element is split and, in an aligned buffer, no two ranks write the same line.
constexpr size_t kShardAlignment = 64;

// Relative size of the shard of each rank, by rank in the group.
using Weights = std::vector<uint32_t>;

// Return weights for `size` shards of equal size.
Weights equal_weights(int size);

// Return the boundaries of the shards of a buffer of `bytes` bytes, one more than there are
// weights. Shard i is the range from boundary i to boundary i + 1; its length is proportional to
// its weight, to within one cache line. All boundaries except the last are multiples of
// kShardAlignment. Requires: at least one weight above zero.
std::vector<size_t> shard_boundaries(size_t bytes, const Weights& weights);

}  // namespace smdist
