// SPDX-License-Identifier: Apache-2.0
#include "engine/algorithm_choice.h"

#include <algorithm>

#include "collectives/agreement.h"
#include "collectives/collectives.h"
#include "collectives/owner_rotation.h"
#include "reduce/reduce.h"

namespace smdist {
namespace {

using Spans = std::vector<Span>;

BufferLayout layout_of(const Spans& spans) {
  return spans.size() == 1 ? BufferLayout::kOneBuffer : BufferLayout::kBufferPerRank;
}

// Returns the regions of the N parts, in one buffer or in N buffers. N buffers may have different
// lengths.
std::vector<Region> regions_of(BufferKind buffer, const Spans& spans, int size) {
  const size_t count = static_cast<size_t>(size);
  if (spans.size() == 1)
    return parts_of_ranks(buffer, size, spans[0].bytes / count, BufferLayout::kOneBuffer);
  std::vector<Region> regions;
  for (uint32_t i = 0; i < spans.size(); ++i) regions.push_back({buffer, i, 0, spans[i].bytes});
  return regions;
}

// Returns the length of the data of one rank, from this rank's buffers.
size_t part_bytes_of(const Operation& operation, int rank, int size) {
  const bool scatters = operation.kind == Collective::kScatter && rank == operation.root;
  if (scatters) return regions_of(BufferKind::kInput, operation.inputs, size)[0].bytes;
  const bool takes_output = operation.kind == Collective::kScatter ||
                            operation.kind == Collective::kReceive ||
                            operation.kind == Collective::kReduceScatter ||
                            (operation.kind == Collective::kBroadcast && rank != operation.root);
  return takes_output ? operation.outputs[0].bytes : operation.inputs[0].bytes;
}

Weights weights_of(const Group& group, const Weights& of_all) {
  Weights weights;
  for (const int rank : group.members) {
    if (!of_all.empty()) weights.push_back(of_all[static_cast<size_t>(rank)]);
  }
  const bool is_any = std::any_of(weights.begin(), weights.end(), [](uint32_t w) { return w > 0; });
  return is_any ? weights : equal_weights(group.size());
}

Plan broadcast_plan(const Operation& operation, const Group& group, size_t bytes,
                    size_t chunk_bytes) {
  Plan plan = broadcast(group.rank, group.hosts, operation.root, bytes, chunk_bytes);
  const bool copies = group.rank == operation.root && !operation.outputs.empty() && bytes > 0;
  if (copies) {
    const Region input{BufferKind::kInput, 0, 0, bytes};
    const Region output{BufferKind::kOutput, 0, 0, bytes};
    plan.steps.push_back({StepKind::kCopy, -1, 0, {input}, output, {}});
  }
  return plan;
}

// Returns the plan of this rank's data. bytes: length of the data of one rank.
Plan data_plan(const Operation& operation, const Group& group, const AlgorithmChoice& choice,
               size_t bytes) {
  const int rank = group.rank;
  const int size = group.size();
  const int root = operation.root;
  const Segmentation& segmentation = choice.segmentation;
  switch (operation.kind) {
    case Collective::kAllReduce:
      if (choice.is_one_shot)
        return one_shot_all_reduce(rank, group.hosts, bytes, segmentation.widening);
      return all_reduce(rank, group.hosts, bytes, choice.weights, segmentation);
    case Collective::kReduceScatter:
      return reduce_scatter(rank, group.hosts, bytes, layout_of(operation.inputs), segmentation);
    case Collective::kAllGather:
      return all_gather(rank, group.hosts, bytes, layout_of(operation.outputs));
    case Collective::kBroadcast:
      return broadcast_plan(operation, group, bytes, segmentation.chunk_bytes);
    case Collective::kReduce:
      return reduce_to_root(rank, group.hosts, root, bytes, segmentation);
    case Collective::kGather:
      return gather(rank, size, root, bytes, layout_of(operation.outputs));
    case Collective::kScatter:
      return scatter(rank, size, root, bytes, layout_of(operation.inputs));
    case Collective::kAllToAll:
      return all_to_all(rank, size, regions_of(BufferKind::kInput, operation.inputs, size),
                        regions_of(BufferKind::kOutput, operation.outputs, size));
    case Collective::kBarrier:
      return barrier(rank, size);
    case Collective::kSend:
      return send_to(rank, size, operation.peer, bytes);
    case Collective::kReceive:
      // A receive from any rank gets its plan when its sender is known.
      return operation.peer == kAnyRank ? Plan{} : receive_from(rank, size, operation.peer, bytes);
  }
  return {};
}

// Lets no rank complete the plan before all ranks have posted the operation, and so agree about it.
void await_agreement(Plan& plan, const Operation& operation, const Group& group, size_t bytes) {
  const Collective kind = operation.kind;
  if (is_point_to_point(kind)) return;
  if (is_rooted(kind) && bytes > 0 && group.size() > kMaxSignallingRanks) {
    const bool moves_from_root = kind == Collective::kBroadcast || kind == Collective::kScatter;
    return await_all_ranks_at_root(plan, group.rank, group.size(), operation.root, moves_from_root);
  }
  if (is_rooted(kind) || bytes == 0) await_all_ranks(plan, group.rank, group.size());
}

}  // namespace

Descriptor descriptor_of(const Operation& operation, int rank, int size) {
  Descriptor descriptor;
  descriptor.kind = operation.kind;
  descriptor.dtype = operation.dtype;
  if (is_reducing(operation.kind)) {
    descriptor.op = operation.op;
    descriptor.scale = operation.scale;
  }
  if (is_rooted(operation.kind)) descriptor.root = operation.root;
  const bool has_one_length =
      operation.kind != Collective::kBarrier && operation.kind != Collective::kAllToAll;
  if (has_one_length) descriptor.bytes = part_bytes_of(operation, rank, size);
  if (operation.kind == Collective::kAllToAll) descriptor.bytes = operation.layout;
  const bool has_layout = has_one_length && !is_point_to_point(operation.kind);
  if (has_layout) descriptor.to_bytes = descriptor.from_bytes = operation.layout;
  descriptor.call_bytes = operation.call ? operation.call->call_bytes : descriptor.bytes;
  return descriptor;
}

Descriptor descriptor_for(Descriptor common, const Operation& operation, int peer, int size) {
  if (operation.kind == Collective::kAllToAll) {
    const size_t index = static_cast<size_t>(peer);
    common.to_bytes = regions_of(BufferKind::kInput, operation.inputs, size)[index].bytes;
    common.from_bytes = regions_of(BufferKind::kOutput, operation.outputs, size)[index].bytes;
  }
  return common;
}

AlgorithmChoice choose(const Descriptor& descriptor, const Tuning& tuning, const Group& group,
                       uint64_t turn) {
  const size_t widening = partial_bytes(descriptor.dtype) / element_bytes(descriptor.dtype);
  AlgorithmChoice choice{{tuning.chunk_bytes, group.window, widening},
                         weights_of(group, tuning.shard_weights)};
  const uint64_t bytes = descriptor.bytes;
  if (descriptor.kind != Collective::kAllReduce || bytes == 0) return choice;
  choice.is_one_shot = bytes <= tuning.one_shot_bytes;
  const bool is_in_shards = bytes > std::max(tuning.one_shot_bytes, tuning.single_owner_bytes);
  choice.is_shareable = is_in_shards && group.is_on_one_host && group.size() > 1;
  if (!choice.is_one_shot && bytes <= tuning.single_owner_bytes) {
    const int owner = owner_of(turn, choice.weights);
    choice.weights.assign(choice.weights.size(), 0);
    choice.weights[static_cast<size_t>(owner)] = 1;
  }
  return choice;
}

Plan plan_of(const Operation& operation, const Group& group, const AlgorithmChoice& choice) {
  const bool has_one_length =
      operation.kind != Collective::kBarrier && operation.kind != Collective::kAllToAll;
  const size_t bytes = has_one_length ? part_bytes_of(operation, group.rank, group.size()) : 0;
  Plan plan = data_plan(operation, group, choice, bytes);
  await_agreement(plan, operation, group, bytes);
  return plan;
}

}  // namespace smdist
