// SPDX-License-Identifier: Apache-2.0
// Who owns which part of a buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace smdist {

// Shards begin on cache lines, so that no element is cut and no two owners
// write one line. Cache lines of the memory, if the buffer begins on one.
constexpr size_t kShardAlignment = 64;

using Weights = std::vector<uint32_t>;

Weights equal_weights(int size);

// The size + 1 boundaries of `size` shards of `bytes` bytes: shard i is
// [boundary i, boundary i + 1), and holds its weight's share of the bytes to
// within one cache line. Boundaries are multiples of kShardAlignment, but for the
// last. Requires: at least one weight above zero.
std::vector<size_t> shard_boundaries(size_t bytes, const Weights& weights);

}  // namespace smdist
