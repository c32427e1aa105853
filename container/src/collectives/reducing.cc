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
#include "collectives/spreading.h"
#include "collectives/summing.h"

namespace smdist {
namespace {

// The shards of a buffer as regions of input and output.
std::vector<Region> shards_of(Room room, const std::vector<size_t>& boundaries) {
  std::vector<Region> shards;
  for (size_t i = 0; i + 1 < boundaries.size(); ++i) {
    shards.push_back({room, 0, boundaries[i], boundaries[i + 1] - boundaries[i]});
  }
  return shards;
}

// Sums that an owner makes for the root, in a window of slots of their own.
class SumsForRoot final {
 public:
  SumsForRoot(PlanBuilder& builder, int rank, int root, const Cut& cut)
      : builder_(builder), is_root_(rank == root), root_(root), window_(cut.window) {}

  Region slot(uint32_t piece, size_t bytes) {
    if (slots_.size() < window_ && piece == slots_.size())
      slots_.push_back(builder_.scratch(bytes));
    return part_of(slots_[piece % window_], 0, bytes);
  }

  // What has to be over before a piece may use its slot.
  std::vector<uint32_t> earlier(uint32_t piece) const {
    if (is_root_ || piece < window_ || piece - window_ >= sends_.size()) return {};
    return {sends_[piece - window_]};
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

// Visits every piece of every owner's shard: all first pieces, beginning with the
// next rank's, so that no rank is everybody's first target; then all second ones.
template <typename Visit>
void for_each_shard_piece(int rank, const std::vector<Region>& shards, size_t piece_bytes,
                          Visit visit) {
  size_t longest = 0;
  for (const Region& shard : shards) longest = std::max(longest, shard.bytes);
  const int size = static_cast<int>(shards.size());
  for_each_piece(longest, piece_bytes, [&](size_t offset, size_t, uint32_t piece) {
    for (int step = 1; step <= size; ++step) {
      const int owner = (rank + step) % size;
      const size_t bytes = shards[static_cast<size_t>(owner)].bytes;
      if (offset < bytes) visit(owner, piece, offset, std::min(piece_bytes, bytes - offset));
    }
  });
}

}  // namespace

Plan all_reduce(int rank, const Hosts& hosts, size_t bytes, const Weights& weights,
                const Cut& cut) {
  const std::vector<size_t> boundaries = shard_boundaries(bytes, weights);
  const std::vector<Region> inputs = shards_of(Room::kInput, boundaries);
  const std::vector<Region> outputs = shards_of(Room::kOutput, boundaries);
  PlanBuilder builder(rank, hosts.size());
  Summing summing(builder, rank, hosts, cut);
  for_each_shard_piece(
      rank, inputs, cut.piece_bytes, [&](int owner, uint32_t piece, size_t offset, size_t length) {
        const size_t i = static_cast<size_t>(owner);
        const Region sum = part_of(outputs[i], offset, length);
        const uint32_t done = summing.add(owner, piece, part_of(inputs[i], offset, length), sum);
        spread(builder, rank, hosts,
               {owner, summing.tag(owner, piece, Leg::kSum), sum, sum, {done}});
      });
  return builder.finish();
}

Plan reduce_to_root(int rank, const Hosts& hosts, int root, size_t bytes, const Cut& cut) {
  Weights weights = equal_weights(hosts.size());
  if (bytes < kLongBytes) {
    weights.assign(weights.size(), 0);
    weights[static_cast<size_t>(root)] = 1;
  }
  const std::vector<size_t> boundaries = shard_boundaries(bytes, weights);
  const std::vector<Region> inputs = shards_of(Room::kInput, boundaries);
  const std::vector<Region> outputs = shards_of(Room::kOutput, boundaries);
  PlanBuilder builder(rank, hosts.size());
  Summing summing(builder, rank, hosts, cut);
  SumsForRoot sums(builder, rank, root, cut);
  for_each_shard_piece(
      rank, inputs, cut.piece_bytes, [&](int owner, uint32_t piece, size_t offset, size_t length) {
        const size_t i = static_cast<size_t>(owner);
        const Region at_root = part_of(outputs[i], offset, length);
        const Region sum = rank == owner && rank != root ? sums.slot(piece, length) : at_root;
        const uint32_t done =
            summing.add(owner, piece, part_of(inputs[i], offset, length), sum, sums.earlier(piece));
        const uint32_t tag = summing.tag(owner, piece, Leg::kSum);
        if (rank == owner && rank != root) sums.send(tag, sum, done);
        if (rank == root && rank != owner) builder.receive(owner, tag, at_root);
      });
  return builder.finish();
}

Plan reduce_scatter(int rank, const Hosts& hosts, size_t chunk_bytes, Layout inputs,
                    const Cut& cut) {
  const std::vector<Region> shares = chunks_of(Room::kInput, hosts.size(), chunk_bytes, inputs);
  PlanBuilder builder(rank, hosts.size());
  Summing summing(builder, rank, hosts, cut);
  for_each_shard_piece(rank, shares, cut.piece_bytes,
                       [&](int owner, uint32_t piece, size_t offset, size_t length) {
                         const Region& share = shares[static_cast<size_t>(owner)];
                         summing.add(owner, piece, part_of(share, offset, length),
                                     {Room::kOutput, 0, offset, length});
                       });
  return builder.finish();
}

}  // namespace smdist
