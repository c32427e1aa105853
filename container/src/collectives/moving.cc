// SPDX-License-Identifier: Apache-2.0
// The collectives that only move: every chunk goes straight to where it belongs.
//
// Where input and output may share memory (see Operation), they do so in a chunk
// that its rank neither sends elsewhere nor receives.
#include <algorithm>

#include "collectives/collectives.h"
#include "collectives/plan_builder.h"

namespace smdist {
namespace {

Region whole(Room room, size_t bytes) { return {room, 0, 0, bytes}; }

// The shards of a long broadcast: the root owns none.
Weights weights_without(int root, int size) {
  Weights weights = equal_weights(size);
  weights[static_cast<size_t>(root)] = 0;
  return weights;
}

// What one rank does about one piece of the shard of `owner`.
void broadcast_piece(PlanBuilder& builder, int rank, int root, int owner, const Region& piece,
                     uint32_t tag) {
  if (rank == root) {
    builder.send(owner, tag, {Room::kInput, 0, piece.offset, piece.bytes});
  } else if (rank != owner) {
    builder.receive(owner, tag, piece);
  } else {
    const uint32_t arrival = builder.receive(root, tag, piece);
    for (const int peer : builder.rotated_peers()) {
      if (peer != root) builder.send(peer, tag, piece, {arrival});
    }
  }
}

Plan long_broadcast(int rank, int size, int root, size_t bytes, size_t piece_bytes) {
  const auto boundaries = shard_boundaries(bytes, weights_without(root, size));
  PlanBuilder builder(rank, size);
  size_t longest = 0;
  for (size_t i = 0; i + 1 < boundaries.size(); ++i) {
    longest = std::max(longest, boundaries[i + 1] - boundaries[i]);
  }
  for_each_piece(longest, piece_bytes, [&](size_t offset, size_t, uint32_t tag) {
    for (int step = 1; step < size; ++step) {
      const int owner = (root + step) % size;
      const size_t begin = boundaries[static_cast<size_t>(owner)] + offset;
      const size_t end = boundaries[static_cast<size_t>(owner) + 1];
      if (begin >= end) continue;
      const Region piece{Room::kOutput, 0, begin, std::min(piece_bytes, end - begin)};
      broadcast_piece(builder, rank, root, owner, piece, tag);
    }
  });
  return builder.finish();
}

}  // namespace

std::vector<Region> chunks_of(Room room, int size, size_t chunk_bytes, Layout layout) {
  std::vector<Region> chunks;
  for (uint32_t i = 0; i < static_cast<uint32_t>(size); ++i) {
    if (layout == Layout::kOneBuffer) {
      chunks.push_back({room, 0, i * chunk_bytes, chunk_bytes});
    } else {
      chunks.push_back({room, i, 0, chunk_bytes});
    }
  }
  return chunks;
}

Plan all_gather(int rank, int size, size_t chunk_bytes, Layout outputs) {
  const std::vector<Region> chunks = chunks_of(Room::kOutput, size, chunk_bytes, outputs);
  const Region own = whole(Room::kInput, chunk_bytes);
  PlanBuilder builder(rank, size);
  builder.copy(own, chunks[static_cast<size_t>(rank)]);
  for (const int peer : builder.rotated_peers()) {
    builder.send(peer, 0, own);
    builder.receive(peer, 0, chunks[static_cast<size_t>(peer)]);
  }
  return builder.finish();
}

Plan broadcast(int rank, int size, int root, size_t bytes, size_t piece_bytes) {
  if (size > 2 && bytes >= kLongBytes) return long_broadcast(rank, size, root, bytes, piece_bytes);
  PlanBuilder builder(rank, size);
  if (rank != root) {
    builder.receive(root, 0, whole(Room::kOutput, bytes));
    return builder.finish();
  }
  for (const int peer : builder.rotated_peers()) {
    builder.send(peer, 0, whole(Room::kInput, bytes));
  }
  return builder.finish();
}

Plan gather(int rank, int size, int root, size_t chunk_bytes, Layout outputs) {
  const Region own = whole(Room::kInput, chunk_bytes);
  PlanBuilder builder(rank, size);
  if (rank != root) {
    builder.send(root, 0, own);
    return builder.finish();
  }
  const std::vector<Region> chunks = chunks_of(Room::kOutput, size, chunk_bytes, outputs);
  builder.copy(own, chunks[static_cast<size_t>(root)]);
  for (const int peer : builder.rotated_peers()) {
    builder.receive(peer, 0, chunks[static_cast<size_t>(peer)]);
  }
  return builder.finish();
}

Plan scatter(int rank, int size, int root, size_t chunk_bytes, Layout inputs) {
  const Region own = whole(Room::kOutput, chunk_bytes);
  PlanBuilder builder(rank, size);
  if (rank != root) {
    builder.receive(root, 0, own);
    return builder.finish();
  }
  const std::vector<Region> chunks = chunks_of(Room::kInput, size, chunk_bytes, inputs);
  builder.copy(chunks[static_cast<size_t>(root)], own);
  for (const int peer : builder.rotated_peers()) {
    builder.send(peer, 0, chunks[static_cast<size_t>(peer)]);
  }
  return builder.finish();
}

Plan all_to_all(int rank, int size, const std::vector<Region>& to,
                const std::vector<Region>& from) {
  PlanBuilder builder(rank, size);
  builder.copy(to[static_cast<size_t>(rank)], from[static_cast<size_t>(rank)]);
  for (const int peer : builder.rotated_peers()) {
    builder.send(peer, 0, to[static_cast<size_t>(peer)]);
    builder.receive(peer, 0, from[static_cast<size_t>(peer)]);
  }
  return builder.finish();
}

Plan barrier(int rank, int size) {
  PlanBuilder builder(rank, size);
  for (const int peer : builder.rotated_peers()) {
    builder.signal(peer);
    builder.await_signal(peer);
  }
  return builder.finish();
}

Plan send_to(int rank, int size, int receiver, size_t bytes) {
  PlanBuilder builder(rank, size);
  if (bytes > 0) {
    builder.send(receiver, 0, whole(Room::kInput, bytes));
  } else {
    builder.signal(receiver);
    builder.await_signal(receiver);  // an empty message waits for its receiver, too
  }
  return builder.finish();
}

Plan receive_from(int rank, int size, int sender, size_t bytes) {
  PlanBuilder builder(rank, size);
  if (bytes > 0) {
    builder.receive(sender, 0, whole(Room::kOutput, bytes));
  } else {
    builder.signal(sender);
    builder.await_signal(sender);
  }
  return builder.finish();
}

}  // namespace smdist
