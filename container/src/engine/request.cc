// SPDX-License-Identifier: Apache-2.0
#include "engine/request.h"

#include <algorithm>

#include "collectives/collectives.h"
#include "reduce/reduce.h"

namespace smdist {
namespace {

using Spans = std::vector<Span>;

Layout layout_of(const Spans& spans) {
  return spans.size() == 1 ? Layout::kOneBuffer : Layout::kBufferPerRank;
}

// The N chunks of one or N buffers, of any lengths if they are N.
std::vector<Region> regions_of(Room room, const Spans& spans, int size) {
  const size_t count = static_cast<size_t>(size);
  if (spans.size() == 1) return chunks_of(room, size, spans[0].bytes / count, Layout::kOneBuffer);
  std::vector<Region> regions;
  for (uint32_t i = 0; i < spans.size(); ++i) regions.push_back({room, i, 0, spans[i].bytes});
  return regions;
}

// The length of one chunk, seen from this rank.
size_t chunk_bytes_of(const Operation& operation, int rank, int size) {
  const bool scatters = operation.kind == Collective::kScatter && rank == operation.root;
  if (scatters) return regions_of(Room::kInput, operation.inputs, size)[0].bytes;
  const bool takes_output = operation.kind == Collective::kScatter ||
                            operation.kind == Collective::kReceive ||
                            operation.kind == Collective::kReduceScatter ||
                            (operation.kind == Collective::kBroadcast && rank != operation.root);
  return takes_output ? operation.outputs[0].bytes : operation.inputs[0].bytes;
}

Cut cut_for(Dtype dtype, Cut cut) {
  cut.widening = partial_bytes(dtype) / element_bytes(dtype);
  return cut;
}

Plan broadcast_plan(const Operation& operation, const Group& group, size_t bytes) {
  Plan plan = broadcast(group.rank, group.hosts, operation.root, bytes, group.cut.piece_bytes);
  const bool copies = group.rank == operation.root && !operation.outputs.empty() && bytes > 0;
  if (copies) {
    const Region input{Room::kInput, 0, 0, bytes};
    const Region output{Room::kOutput, 0, 0, bytes};
    plan.steps.push_back({StepKind::kCopy, -1, 0, {input}, output, {}});
  }
  return plan;
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
  if (has_one_length) descriptor.bytes = chunk_bytes_of(operation, rank, size);
  return descriptor;
}

Descriptor descriptor_for(Descriptor common, const Operation& operation, int peer, int size) {
  if (operation.kind == Collective::kAllToAll) {
    const size_t index = static_cast<size_t>(peer);
    common.to_bytes = regions_of(Room::kInput, operation.inputs, size)[index].bytes;
    common.from_bytes = regions_of(Room::kOutput, operation.outputs, size)[index].bytes;
  }
  return common;
}

Plan plan_of(const Operation& operation, const Group& group) {
  const int rank = group.rank;
  const int size = group.size();
  const bool has_one_length =
      operation.kind != Collective::kBarrier && operation.kind != Collective::kAllToAll;
  const size_t bytes = has_one_length ? chunk_bytes_of(operation, rank, size) : 0;
  const int root = operation.root;
  const Cut cut = cut_for(operation.dtype, group.cut);
  switch (operation.kind) {
    case Collective::kAllReduce:
      return all_reduce(rank, group.hosts, bytes, equal_weights(size), cut);
    case Collective::kReduceScatter:
      return reduce_scatter(rank, group.hosts, bytes, layout_of(operation.inputs), cut);
    case Collective::kAllGather:
      return all_gather(rank, group.hosts, bytes, layout_of(operation.outputs));
    case Collective::kBroadcast:
      return broadcast_plan(operation, group, bytes);
    case Collective::kReduce:
      return reduce_to_root(rank, group.hosts, root, bytes, cut);
    case Collective::kGather:
      return gather(rank, size, root, bytes, layout_of(operation.outputs));
    case Collective::kScatter:
      return scatter(rank, size, root, bytes, layout_of(operation.inputs));
    case Collective::kAllToAll:
      return all_to_all(rank, size, regions_of(Room::kInput, operation.inputs, size),
                        regions_of(Room::kOutput, operation.outputs, size));
    case Collective::kBarrier:
      return barrier(rank, size);
    case Collective::kSend:
      return send_to(rank, size, operation.peer, bytes);
    case Collective::kReceive:
      // One from any rank is planned when its sender is known.
      return operation.peer == kAnyRank ? Plan{} : receive_from(rank, size, operation.peer, bytes);
  }
  return {};
}

}  // namespace smdist
