// SPDX-License-Identifier: Apache-2.0
// all_reduce, reduce and reduce_scatter: shares go to owners, owners sum.
//
// Why input and output may be the same buffer: a rank writes its own shard only
// when its sum is done, and nobody else reads that shard of its buffer. Another
// owner's sum is written over a shard that this rank had to send to that owner
// first; the sum cannot exist before the owner has received all of this share,
// so the share has left our memory. This holds piece by piece.
#include <algorithm>

#include "collectives/collectives.h"
#include "collectives/plan_builder.h"

namespace smdist {
namespace {

// A message is a share on its way to the owner, or a sum on its way back.
uint32_t share_tag(uint32_t piece) { return 2 * piece; }
uint32_t sum_tag(uint32_t piece) { return 2 * piece + 1; }

// Sends every other owner its part of our input, piece by piece.
void send_shares(PlanBuilder& builder, const std::vector<Region>& shares, size_t piece_bytes) {
  size_t longest = 0;
  for (const Region& share : shares) longest = std::max(longest, share.bytes);
  for_each_piece(longest, piece_bytes, [&](size_t offset, size_t, uint32_t piece) {
    for (const int peer : builder.rotated_peers()) {
      const Region& share = shares[static_cast<size_t>(peer)];
      if (offset >= share.bytes) continue;
      const size_t bytes = std::min(piece_bytes, share.bytes - offset);
      builder.send(peer, share_tag(piece), part_of(share, offset, bytes));
    }
  });
}

// Receives one piece of our shard from all ranks and sums it into `sum`; returns
// the step of the sum.
uint32_t sum_piece(PlanBuilder& builder, int rank, const Region& own, const Region& sum,
                   uint32_t piece) {
  const std::vector<int> peers = builder.rotated_peers();
  std::vector<Region> sources(peers.size() + 1);
  std::vector<uint32_t> arrivals;
  sources[static_cast<size_t>(rank)] = own;
  for (const int peer : peers) {
    const Region slot = builder.scratch(own.bytes);
    sources[static_cast<size_t>(peer)] = slot;
    arrivals.push_back(builder.receive(peer, share_tag(piece), slot));
  }
  return builder.reduce(std::move(sources), sum, std::move(arrivals));
}

// The shards of a buffer as regions of input and output.
std::vector<Region> shards_of(Room room, const std::vector<size_t>& boundaries) {
  std::vector<Region> shards;
  for (size_t i = 0; i + 1 < boundaries.size(); ++i) {
    shards.push_back({room, 0, boundaries[i], boundaries[i + 1] - boundaries[i]});
  }
  return shards;
}

void receive_sum(PlanBuilder& builder, int owner, const Region& shard, size_t piece_bytes) {
  for_each_piece(shard.bytes, piece_bytes, [&](size_t offset, size_t bytes, uint32_t piece) {
    builder.receive(owner, sum_tag(piece), part_of(shard, offset, bytes));
  });
}

}  // namespace

Plan all_reduce(int rank, int size, size_t bytes, const Weights& weights, size_t piece_bytes) {
  const std::vector<size_t> boundaries = shard_boundaries(bytes, weights);
  const std::vector<Region> inputs = shards_of(Room::kInput, boundaries);
  const std::vector<Region> outputs = shards_of(Room::kOutput, boundaries);
  const Region& own = inputs[static_cast<size_t>(rank)];
  const Region& sum = outputs[static_cast<size_t>(rank)];

  PlanBuilder builder(rank, size);
  send_shares(builder, inputs, piece_bytes);
  for_each_piece(own.bytes, piece_bytes, [&](size_t offset, size_t length, uint32_t piece) {
    const Region result = part_of(sum, offset, length);
    const uint32_t done = sum_piece(builder, rank, part_of(own, offset, length), result, piece);
    for (const int peer : builder.rotated_peers()) {
      builder.send(peer, sum_tag(piece), result, {done});
    }
  });
  for (const int peer : builder.rotated_peers()) {
    receive_sum(builder, peer, outputs[static_cast<size_t>(peer)], piece_bytes);
  }
  return builder.finish();
}

Plan reduce_to_root(int rank, int size, int root, size_t bytes, size_t piece_bytes) {
  Weights weights = equal_weights(size);
  if (bytes < kLongBytes) {
    weights.assign(weights.size(), 0);
    weights[static_cast<size_t>(root)] = 1;
  }
  const std::vector<size_t> boundaries = shard_boundaries(bytes, weights);
  const std::vector<Region> inputs = shards_of(Room::kInput, boundaries);
  const std::vector<Region> outputs = shards_of(Room::kOutput, boundaries);
  const Region& own = inputs[static_cast<size_t>(rank)];

  PlanBuilder builder(rank, size);
  send_shares(builder, inputs, piece_bytes);
  for_each_piece(own.bytes, piece_bytes, [&](size_t offset, size_t length, uint32_t piece) {
    const Region share = part_of(own, offset, length);
    const Region result = rank == root ? part_of(outputs[static_cast<size_t>(root)], offset, length)
                                       : builder.scratch(length);
    const uint32_t done = sum_piece(builder, rank, share, result, piece);
    if (rank != root) builder.send(root, sum_tag(piece), result, {done});
  });
  if (rank != root) return builder.finish();
  for (const int peer : builder.rotated_peers()) {
    receive_sum(builder, peer, outputs[static_cast<size_t>(peer)], piece_bytes);
  }
  return builder.finish();
}

Plan reduce_scatter(int rank, int size, size_t chunk_bytes, Layout inputs, size_t piece_bytes) {
  const std::vector<Region> shares = chunks_of(Room::kInput, size, chunk_bytes, inputs);
  const Region& own = shares[static_cast<size_t>(rank)];
  PlanBuilder builder(rank, size);
  send_shares(builder, shares, piece_bytes);
  for_each_piece(chunk_bytes, piece_bytes, [&](size_t offset, size_t length, uint32_t piece) {
    const Region result{Room::kOutput, 0, offset, length};
    sum_piece(builder, rank, part_of(own, offset, length), result, piece);
  });
  return builder.finish();
}

}  // namespace smdist
