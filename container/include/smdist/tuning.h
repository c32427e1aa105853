// SPDX-License-Identifier: Apache-2.0
// Settings that a measurement may choose. None of them changes a bit of any result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace smdist {

// Must be the same on all ranks.
struct Tuning {
  // Number of connections between two ranks that share no memory, at most kMaxLanes: one flow
  // may not be able to use the whole network.
  uint32_t lanes = 1;

  // Buffers are reduced and sent on in pieces of this length, a multiple of 64.
  size_t piece_bytes = 256 << 10;

  // An all_reduce of at most this many bytes takes one step: every rank sends the whole buffer
  // to every other rank, and reduces by itself.
  size_t one_shot_bytes = 4 << 10;

  // A longer all_reduce, of at most this many bytes, is reduced by a single rank instead of in
  // shards. Operations take the ranks in rotation.
  size_t single_owner_bytes = 0;

  // Bytes that may be in flight to each host from all other hosts together. More bytes would
  // overflow the queue of the last switch, and packets would be lost; switches with the smallest
  // buffers queue this many for a port. 0: no limit but the kernel's. For connections that exist
  // already the limit can be raised, but not lowered.
  size_t arriving_bytes = 224 << 10;

  // By engine rank: the share of a buffer that each rank reduces. Empty: equal shares.
  std::vector<uint32_t> shard_weights;
};

constexpr uint32_t kMaxLanes = 16;

// Throws UsageError if the settings are wrong for an engine of `size` ranks.
void check(const Tuning& tuning, int size);

}  // namespace smdist
