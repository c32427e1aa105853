// SPDX-License-Identifier: Apache-2.0
// Plans of collectives that move data without arithmetic: each part goes directly to its receiver.
//
// Input and output may share memory only in a part that the rank neither sends nor receives (see
// Operation).
#include <algorithm>

#include "collectives/collectives.h"
#include "collectives/hierarchical_broadcast.h"
#include "collectives/plan_builder.h"

namespace smdist {
namespace {

Region whole(BufferKind buffer, size_t bytes) { return {buffer, 0, 0, bytes}; }

// Returns the weights of the shards of a long broadcast: 0 for ranks that own no shard.
Weights owners_of(int root, const HostTopology& hosts) {
  Weights weights = equal_weights(hosts.size());
  for (int rank = 0; rank < hosts.size(); ++rank) {
    const bool has_all = hosts.count() > 1 && hosts.same_host(rank, root);
    if (rank == root || has_all) weights[static_cast<size_t>(rank)] = 0;
  }
  return weights;
}

// Adds the steps of one rank for one chunk of the shard of `owner`.
void broadcast_chunk(PlanBuilder& builder, int rank, const HostTopology& hosts, int root, int owner,
                     const Region& chunk, uint32_t tag) {
  const bool is_flat = hosts.count() == 1;
  if (rank == root) {
    builder.send(owner, tag, {BufferKind::kInput, 0, chunk.offset, chunk.bytes});
    return;
  }
  std::vector<uint32_t> arrival;
  if (rank == owner) arrival = {builder.receive(root, tag, chunk)};
  if (!is_flat) {
    return hierarchical_broadcast(builder, rank, hosts,
                                  {owner, tag, chunk, chunk, arrival, hosts.host_of(root)});
  }
  if (rank != owner) {
    builder.receive(owner, tag, chunk);
    return;
  }
  for (const int peer : builder.rotated_peers()) {
    if (peer != root) builder.send(peer, tag, chunk, arrival);
  }
}

// Adds the steps by which the root sends the whole buffer to the other ranks of its host.
void broadcast_to_own_host(PlanBuilder& builder, int rank, const HostTopology& hosts, int root,
                           size_t bytes, uint32_t tag) {
  if (hosts.count() == 1 || !hosts.same_host(rank, root)) return;
  if (rank != root) {
    builder.receive(root, tag, whole(BufferKind::kOutput, bytes));
    return;
  }
  for (const int peer : builder.rotated_peers()) {
    if (hosts.same_host(peer, root)) builder.send(peer, tag, whole(BufferKind::kInput, bytes));
  }
}

Plan long_broadcast(int rank, const HostTopology& hosts, int root, size_t bytes,
                    size_t chunk_bytes) {
  const int size = hosts.size();
  const auto boundaries = shard_boundaries(bytes, owners_of(root, hosts));
  PlanBuilder builder(rank, size);
  size_t longest = 0;
  for (size_t i = 0; i + 1 < boundaries.size(); ++i) {
    longest = std::max(longest, boundaries[i + 1] - boundaries[i]);
  }
  broadcast_to_own_host(builder, rank, hosts, root, bytes, 0);
  for_each_chunk(longest, chunk_bytes, [&](size_t offset, size_t, uint32_t number) {
    for (int step = 1; step < size; ++step) {
      const int owner = (root + step) % size;
      const size_t begin = boundaries[static_cast<size_t>(owner)] + offset;
      const size_t end = boundaries[static_cast<size_t>(owner) + 1];
      if (begin >= end) continue;
      const Region chunk{BufferKind::kOutput, 0, begin, std::min(chunk_bytes, end - begin)};
      const uint32_t tag = 1 + number * static_cast<uint32_t>(size) + static_cast<uint32_t>(owner);
      broadcast_chunk(builder, rank, hosts, root, owner, chunk, tag);
    }
  });
  return builder.finish();
}

}  // namespace

std::vector<Region> parts_of_ranks(BufferKind buffer, int size, size_t part_bytes,
                                   BufferLayout layout) {
  std::vector<Region> parts;
  for (uint32_t i = 0; i < static_cast<uint32_t>(size); ++i) {
    if (layout == BufferLayout::kOneBuffer) {
      parts.push_back({buffer, 0, i * part_bytes, part_bytes});
    } else {
      parts.push_back({buffer, i, 0, part_bytes});
    }
  }
  return parts;
}

Plan all_gather(int rank, const HostTopology& hosts, size_t part_bytes, BufferLayout outputs) {
  const int size = hosts.size();
  const std::vector<Region> parts = parts_of_ranks(BufferKind::kOutput, size, part_bytes, outputs);
  const Region own = whole(BufferKind::kInput, part_bytes);
  PlanBuilder builder(rank, size);
  builder.copy(own, parts[static_cast<size_t>(rank)]);
  for (int step = 0; step < size; ++step) {
    const int origin = (rank + step) % size;
    hierarchical_broadcast(
        builder, rank, hosts,
        {origin, static_cast<uint32_t>(origin), own, parts[static_cast<size_t>(origin)]});
  }
  return builder.finish();
}

Plan broadcast(int rank, const HostTopology& hosts, int root, size_t bytes, size_t chunk_bytes) {
  if (hosts.size() > 2 && bytes >= kLongBytes) {
    return long_broadcast(rank, hosts, root, bytes, chunk_bytes);
  }
  PlanBuilder builder(rank, hosts.size());
  hierarchical_broadcast(
      builder, rank, hosts,
      {root, 0, whole(BufferKind::kInput, bytes), whole(BufferKind::kOutput, bytes)});
  return builder.finish();
}

Plan gather(int rank, int size, int root, size_t part_bytes, BufferLayout outputs) {
  const Region own = whole(BufferKind::kInput, part_bytes);
  PlanBuilder builder(rank, size);
  if (rank != root) {
    builder.send(root, 0, own);
    return builder.finish();
  }
  const std::vector<Region> parts = parts_of_ranks(BufferKind::kOutput, size, part_bytes, outputs);
  builder.copy(own, parts[static_cast<size_t>(root)]);
  for (const int peer : builder.rotated_peers()) {
    builder.receive(peer, 0, parts[static_cast<size_t>(peer)]);
  }
  return builder.finish();
}

Plan scatter(int rank, int size, int root, size_t part_bytes, BufferLayout inputs) {
  const Region own = whole(BufferKind::kOutput, part_bytes);
  PlanBuilder builder(rank, size);
  if (rank != root) {
    builder.receive(root, 0, own);
    return builder.finish();
  }
  const std::vector<Region> parts = parts_of_ranks(BufferKind::kInput, size, part_bytes, inputs);
  builder.copy(parts[static_cast<size_t>(root)], own);
  for (const int peer : builder.rotated_peers()) {
    builder.send(peer, 0, parts[static_cast<size_t>(peer)]);
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
    builder.send(receiver, 0, whole(BufferKind::kInput, bytes));
  } else {
    builder.signal(receiver);
    builder.await_signal(
        receiver);  // an empty message is complete when its receiver has posted, too
  }
  return builder.finish();
}

Plan receive_from(int rank, int size, int sender, size_t bytes) {
  PlanBuilder builder(rank, size);
  if (bytes > 0) {
    builder.receive(sender, 0, whole(BufferKind::kOutput, bytes));
  } else {
    builder.signal(sender);
    builder.await_signal(sender);
  }
  return builder.finish();
}

}  // namespace smdist
