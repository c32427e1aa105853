// SPDX-License-Identifier: Apache-2.0
// What may be chosen by measurement. None of it changes a bit of a result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace smdist {

// The same on all ranks.
struct Tuning {
  // Connections between two ranks that share no memory: one flow may be slower
  // than the network that it goes over. At most kMaxLanes.
  uint32_t lanes = 1;

  // Sums are done and sent on in pieces of this length, a multiple of 64.
  size_t piece_bytes = 256 << 10;

  // An all_reduce of at most so many bytes is done at once: every rank sends all
  // of it to every other one and sums by itself.
  size_t one_shot_bytes = 4 << 10;

  // One that is longer than that, but no longer than this, is summed by a single
  // rank, by turns, instead of being cut in shards.
  size_t single_owner_bytes = 0;

  // How many bytes may be on their way from all other hosts to each one, so that they
  // do not crowd out each other at the last switch, of which the shallowest queue so many
  // for a port. 0: as many as the kernel lets them. Connections that live may get more, but
  // not less.
  size_t arriving_bytes = 224 << 10;

  // By engine rank: which share of a buffer each rank sums. Empty: equal shares.
  std::vector<uint32_t> shard_weights;
};

constexpr uint32_t kMaxLanes = 16;

// Throws UsageError, unless a world of so many ranks can do with it.
void check(const Tuning& tuning, int size);

}  // namespace smdist
