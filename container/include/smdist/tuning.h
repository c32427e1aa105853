// SPDX-License-Identifier: Apache-2.0
// Settings of the algorithms that probe() may choose. No setting changes the result of an
// operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace smdist {

// Settings of the algorithms, the same on all ranks.
struct Tuning {
  // Number of connections between two ranks that share no memory, from 1 to kMaxLanes. One
  // connection may not be able to use the whole bandwidth of the network.
  uint32_t lanes = 1;

  // Size of the chunks in which buffers are reduced and sent, a multiple of 64 bytes.
  size_t chunk_bytes = 256 << 10;

  // Maximum size of a one-shot all_reduce: every rank sends its whole buffer to every other rank,
  // and each rank reduces all buffers.
  size_t one_shot_bytes = 4 << 10;

  // Maximum size of an all_reduce, above one_shot_bytes, that a single rank reduces; larger ones
  // are reduced in one shard per rank. Successive operations use the ranks in turn.
  size_t single_owner_bytes = 0;

  // Maximum number of bytes in flight to each host from all other hosts together. More bytes could
  // overflow the queue of the host's switch port, and packets would be lost. The default fits the
  // switches with the smallest buffers. 0: only the kernel limits it. For connections that exist
  // already the limit can be raised, but not lowered.
  size_t arriving_bytes = 224 << 10;

  // Relative size of the shard that each rank reduces, by engine rank. Empty: equal shards.
  std::vector<uint32_t> shard_weights;
};

// Maximum number of connections between two ranks.
constexpr uint32_t kMaxLanes = 16;

// Throws UsageError if the settings are wrong for an engine of `size` ranks.
void check(const Tuning& tuning, int size);

}  // namespace smdist
