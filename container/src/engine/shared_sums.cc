// SPDX-License-Identifier: Apache-2.0
#include "engine/shared_sums.h"

#include <algorithm>
#include <utility>

#include "collectives/sharding.h"

namespace smdist {
namespace {

constexpr int kChunksPerTurn = 4;  // then the transport is polled

}  // namespace

SharedSums::SharedSums(const Options& options, Transport& transport)
    : options_(options),
      transport_(transport),
      reduction_buffers_(ArenaLayout(options), transport.own_arena()),
      signals_enabled_(static_cast<size_t>(options.size)) {}

std::vector<SharedSums::Active>::iterator SharedSums::find(const OperationId& id) {
  return std::find_if(active_.begin(), active_.end(),
                      [&](const Active& active) { return active.id == id; });
}

SharedSum* SharedSums::begin(const Submission& submission) {
  if (!submission.may_be_shared()) return nullptr;
  const Group& group = *submission.group;
  const bool is_read_by_all =
      std::all_of(group.members.begin(), group.members.end(),
                  [&](int rank) { return rank == options_.rank || transport_.is_read_by(rank); });
  if (!is_read_by_all) return nullptr;
  SharedSum* sum = reduction_buffers_.begin(task_of(submission), static_cast<size_t>(group.rank));
  if (sum != nullptr) active_.push_back({submission.id, submission.group, sum});
  return sum;
}

SumTask SharedSums::task_of(const Submission& submission) const {
  const Operation& operation = submission.operation;
  const AlgorithmChoice& choice = submission.choice;
  const void* const input = operation.inputs[0].data;
  return {
      operation.dtype,
      operation.op,
      operation.scale,
      static_cast<const uint8_t*>(input),
      static_cast<uint8_t*>(operation.outputs[0].data),
      shard_boundaries(operation.inputs[0].bytes, choice.weights),
      std::min(choice.segmentation.chunk_bytes, reduction_buffers_.slot_bytes()),
      input == operation.outputs[0].data && reduction_buffers_.is_readable(operation.inputs[0])};
}

void SharedSums::join(SharedSum& sum, int member, int rank, const SharedSumTicket& ticket) {
  const Span arena = transport_.arena_of(rank);
  const ReductionBuffer theirs = reduction_buffers_.at(arena, ticket);
  sum.join(static_cast<size_t>(member), theirs, ticket.count,
           reduction_buffers_.data_at(arena, ticket, sum.bytes()));
}

void SharedSums::cancel(const OperationId& id) {
  const auto active = find(id);
  reduction_buffers_.cancel(*active->sum);
  active_.erase(active);
}

std::vector<OperationId> SharedSums::ids() const {
  std::vector<OperationId> ids;
  for (const Active& active : active_) ids.push_back(active.id);
  return ids;
}

SharedSums::Advance SharedSums::advance(const OperationId& id) {
  const auto active = find(id);
  if (active == active_.end()) return Advance::kBlocked;
  for (int chunk = 0; chunk < kChunksPerTurn; ++chunk) {
    const SharedSum::MemberSet readers = active->sum->advance();
    signal(*active->group, readers);
    if (active->sum->is_done()) {  // perhaps because others have read what this rank has
      reduction_buffers_.end(*active->sum);
      active_.erase(active);
      return Advance::kDone;
    }
    if (readers == 0) return Advance::kBlocked;
  }
  return Advance::kMore;
}

void SharedSums::signal(const Group& group, SharedSum::MemberSet members) {
  for (size_t member = 0; members != 0; ++member, members >>= 1) {
    if ((members & 1) != 0) transport_.signal(group.members[member]);
  }
}

void SharedSums::enable_signals() {
  std::vector<bool> expected(signals_enabled_.size());
  for (const Active& active : active_) {
    SharedSum::MemberSet awaited = active.sum->awaited();
    for (size_t member = 0; awaited != 0; ++member, awaited >>= 1) {
      if ((awaited & 1) == 0) continue;
      expected[static_cast<size_t>(active.group->members[member])] = true;
    }
  }
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    if (expected[rank] != signals_enabled_[rank]) {
      transport_.enable_signals(static_cast<int>(rank), expected[rank]);
    }
  }
  signals_enabled_ = std::move(expected);
  any_signals_enabled_ =
      std::find(signals_enabled_.begin(), signals_enabled_.end(), true) != signals_enabled_.end();
}

void SharedSums::clear() {
  active_.clear();
  reduction_buffers_.clear();
}

}  // namespace smdist
