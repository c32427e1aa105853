// SPDX-License-Identifier: Apache-2.0
// Plans of all_reduce, reduce and reduce_scatter: every rank sends its share of each shard to the
// owner of the shard, and the owner sums the shares of all ranks.
//
// Input and output may be the same buffer, for two reasons. A rank writes the sum of its own shard
// when it is complete, and no other rank reads that shard of this buffer. A rank writes the sum
// that it receives from another owner over its own share of that shard; the owner has computed the
// sum after receiving the share, so the share is no longer needed. The same is true for every
// chunk.
#include <algorithm>

#include "collectives/collectives.h"
#include "collectives/hierarchical_broadcast.h"
#include "collectives/hierarchical_reduce.h"
#include "collectives/plan_builder.h"

namespace smdist {
namespace {

// Returns the shards of a buffer as regions.
std::vector<Region> shards_of(BufferKind buffer, const std::vector<size_t>& boundaries) {
  std::vector<Region> shards;
  for (size_t i = 0; i + 1 < boundaries.size(); ++i) {
    shards.push_back({buffer, 0, boundaries[i], boundaries[i + 1] - boundaries[i]});
  }
  return shards;
}

// Slots of scratch memory for the sums that an owner computes and sends to the root, `window` of
// them.
//
// Thread safety: none.
class SumsForRoot final {
 public:
  SumsForRoot(PlanBuilder& builder, int rank, int root, const Segmentation& segmentation)
      : builder_(builder), is_root_(rank == root), root_(root), window_(segmentation.window) {}

  Region slot(uint32_t chunk, size_t bytes) {
    if (slots_.size() < window_ && chunk == slots_.size())
      slots_.push_back(builder_.scratch(bytes));
    return part_of(slots_[chunk % window_], 0, bytes);
  }

  // Returns the steps that must be complete before a chunk may use its slot.
  std::vector<uint32_t> earlier(uint32_t chunk) const {
    if (is_root_ || chunk < window_ || chunk - window_ >= sends_.size()) return {};
    return {sends_[chunk - window_]};
  }

  void send(uint32_t tag, const Region& sum, uint32_t done) {
    sends_.push_back(builder_.send(root_, tag, sum, {done}));
  }

 private:
  PlanBuilder& builder_;
  const bool is_root_;
  const int root_;
  const uint32_t window_;
  std::vector<Region> slots_;
  std::vector<uint32_t> sends_;
};

// Visits every chunk of every owner's shard: first the first chunks of all shards, then the second
// chunks, and so on. Rank r begins with the shard of rank r + 1, so that the ranks do not all send
// to the same rank at the same time.
template <typename Visit>
void for_each_shard_chunk(int rank, const std::vector<Region>& shards, size_t chunk_bytes,
                          Visit visit) {
  size_t longest = 0;
  for (const Region& shard : shards) longest = std::max(longest, shard.bytes);
  const int size = static_cast<int>(shards.size());
  for_each_chunk(longest, chunk_bytes, [&](size_t offset, size_t, uint32_t chunk) {
    for (int step = 1; step <= size; ++step) {
      const int owner = (rank + step) % size;
      const size_t bytes = shards[static_cast<size_t>(owner)].bytes;
      if (offset < bytes) visit(owner, chunk, offset, std::min(chunk_bytes, bytes - offset));
    }
  });
}

}  // namespace

Plan all_reduce(int rank, const HostTopology& hosts, size_t bytes, const Weights& weights,
                const Segmentation& segmentation) {
  const std::vector<size_t> boundaries = shard_boundaries(bytes, weights);
  const std::vector<Region> inputs = shards_of(BufferKind::kInput, boundaries);
  const std::vector<Region> outputs = shards_of(BufferKind::kOutput, boundaries);
  PlanBuilder builder(rank, hosts.size());
  HierarchicalReduce reduction(builder, rank, hosts, segmentation);
  for_each_shard_chunk(
      rank, inputs, segmentation.chunk_bytes,
      [&](int owner, uint32_t chunk, size_t offset, size_t length) {
        const size_t i = static_cast<size_t>(owner);
        const Region sum = part_of(outputs[i], offset, length);
        const uint32_t done = reduction.add(owner, chunk, part_of(inputs[i], offset, length), sum);
        hierarchical_broadcast(
            builder, rank, hosts,
            {owner, reduction.tag(owner, chunk, ReduceMessage::kTotal), sum, sum, {done}});
      });
  return builder.finish();
}

Plan reduce_to_root(int rank, const HostTopology& hosts, int root, size_t bytes,
                    const Segmentation& segmentation) {
  Weights weights = equal_weights(hosts.size());
  if (bytes < kLongBytes) {
    weights.assign(weights.size(), 0);
    weights[static_cast<size_t>(root)] = 1;
  }
  const std::vector<size_t> boundaries = shard_boundaries(bytes, weights);
  const std::vector<Region> inputs = shards_of(BufferKind::kInput, boundaries);
  const std::vector<Region> outputs = shards_of(BufferKind::kOutput, boundaries);
  PlanBuilder builder(rank, hosts.size());
  HierarchicalReduce reduction(builder, rank, hosts, segmentation);
  SumsForRoot sums(builder, rank, root, segmentation);
  for_each_shard_chunk(
      rank, inputs, segmentation.chunk_bytes,
      [&](int owner, uint32_t chunk, size_t offset, size_t length) {
        const size_t i = static_cast<size_t>(owner);
        const Region at_root = part_of(outputs[i], offset, length);
        const Region sum = rank == owner && rank != root ? sums.slot(chunk, length) : at_root;
        const uint32_t done = reduction.add(owner, chunk, part_of(inputs[i], offset, length), sum,
                                            sums.earlier(chunk));
        const uint32_t tag = reduction.tag(owner, chunk, ReduceMessage::kTotal);
        if (rank == owner && rank != root) sums.send(tag, sum, done);
        if (rank == root && rank != owner) builder.receive(owner, tag, at_root);
      });
  return builder.finish();
}

Plan reduce_scatter(int rank, const HostTopology& hosts, size_t part_bytes, BufferLayout inputs,
                    const Segmentation& segmentation) {
  const std::vector<Region> shares =
      parts_of_ranks(BufferKind::kInput, hosts.size(), part_bytes, inputs);
  PlanBuilder builder(rank, hosts.size());
  HierarchicalReduce reduction(builder, rank, hosts, segmentation);
  for_each_shard_chunk(rank, shares, segmentation.chunk_bytes,
                       [&](int owner, uint32_t chunk, size_t offset, size_t length) {
                         const Region& share = shares[static_cast<size_t>(owner)];
                         reduction.add(owner, chunk, part_of(share, offset, length),
                                       {BufferKind::kOutput, 0, offset, length});
                       });
  return builder.finish();
}

}  // namespace smdist
