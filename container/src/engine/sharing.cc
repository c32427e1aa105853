// SPDX-License-Identifier: Apache-2.0
// Sums in shared memory. All members of a group do one, or none does: who has no exchange for it,
// or cannot read another's memory, announces it as any other operation, and then all follow a plan.
#include <algorithm>

#include "engine/conductor.h"
#include "engine/request.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr int kPiecesAtOnce = 4;  // then it is the transport's turn

}  // namespace

// Null: it is done by a plan.
SharedSum* Conductor::begin_sum(const Submission& submission) {
  if (broken_ || !submission.may_be_shared()) return nullptr;
  const Group& group = *submission.group;
  const bool is_read = std::all_of(group.members.begin(), group.members.end(), [&](int rank) {
    return rank == options_.rank || transport_.is_read_by(rank);
  });
  if (!is_read) return nullptr;
  return exchanges_.begin(task_of(submission), static_cast<size_t>(group.rank));
}

SumTask Conductor::task_of(const Submission& submission) const {
  const Operation& operation = submission.operation;
  const Choice& choice = submission.choice;
  return {operation.dtype,
          operation.op,
          operation.scale,
          static_cast<const uint8_t*>(operation.inputs[0].data),
          static_cast<uint8_t*>(operation.outputs[0].data),
          shard_boundaries(operation.inputs[0].bytes, choice.weights),
          std::min(choice.cut.piece_bytes, exchanges_.slot_bytes())};
}

void Conductor::announce_sum(Pending& pending, int member) {
  const Submission& submission = pending.submission();
  const DescriptorBytes bytes = encode(submission.descriptor_to(member));
  Frame frame = frame_of(submission.id);
  frame.type = FrameType::kReadyMeeting;
  send_text(
      submission.group->members[static_cast<size_t>(member)], frame,
      std::string(bytes.begin(), bytes.end()) + encode(exchanges_.meeting_of(*pending.sum())));
}

std::optional<Meeting> Conductor::meeting_in(int rank, const Frame& frame) const {
  if (frame.type != FrameType::kReadyMeeting) return std::nullopt;
  return decode_meeting(&peer(rank).control[kDescriptorBytes]);
}

void Conductor::meet_sum(Pending& pending, int rank, const std::optional<Meeting>& meeting) {
  if (!meeting) return replan(pending);
  const Exchange theirs = exchanges_.at(transport_.arena_of(rank), *meeting);
  pending.sum()->meet(static_cast<size_t>(pending.member_of(rank)), theirs, meeting->count);
}

// What this rank has given so far nobody has read, or will.
void Conductor::replan(Pending& pending) {
  Submission& submission = pending.submission();
  exchanges_.cancel(*pending.sum());
  shared_.erase(std::find(shared_.begin(), shared_.end(), submission.id));
  submission.make_plan();
  Buffer scratch = scratch_for(submission);
  if (broken_) return;
  pending.replan(std::move(scratch));
  run(pending, pending.begin());
}

// Data for a sum in shared memory: its sender knows before us that it is none.
Pending* Conductor::find_planned(const OperationId& id) {
  Pending* pending = find(id);
  if (pending == nullptr || pending->sum() == nullptr) return pending;
  if (pending->sum()->has_met_all()) throw PeerError("sent data of a sum in shared memory");
  replan(*pending);
  return find(id);
}

void Conductor::advance() {
  is_busy_ = false;
  if (shared_.empty() && !expects_any_) return;
  const std::vector<OperationId> all = shared_;
  for (const OperationId& id : all) {
    Pending* pending = find(id);
    is_busy_ = (pending != nullptr && advance(*pending)) || is_busy_;
  }
  if (!is_busy_) expect_news();
}

// Whether it may go on at once.
bool Conductor::advance(Pending& pending) {
  SharedSum& sum = *pending.sum();
  for (int piece = 0; piece < kPiecesAtOnce; ++piece) {
    const SharedSum::Members told = sum.advance();
    tell(*pending.submission().group, told);
    if (told == 0) return false;
    if (!sum.is_done()) continue;
    shared_.erase(std::find(shared_.begin(), shared_.end(), pending.submission().id));
    pending.end_sum();
    run(pending, {});
    return false;
  }
  return true;
}

void Conductor::tell(const Group& group, SharedSum::Members members) {
  for (size_t member = 0; members != 0; ++member, members >>= 1) {
    if ((members & 1) != 0) transport_.signal(group.members[member]);
  }
}

void Conductor::expect_news() {
  std::vector<bool> expected(peers_.size());
  for (const OperationId& id : shared_) {
    Pending* pending = find(id);
    SharedSum::Members awaited = pending->sum()->awaited();
    for (size_t member = 0; awaited != 0; ++member, awaited >>= 1) {
      if ((awaited & 1) == 0) continue;
      expected[static_cast<size_t>(pending->submission().group->members[member])] = true;
    }
  }
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    if (expected[rank] != is_expected_[rank]) {
      transport_.expect(static_cast<int>(rank), expected[rank]);
    }
  }
  is_expected_ = std::move(expected);
  expects_any_ = std::find(is_expected_.begin(), is_expected_.end(), true) != is_expected_.end();
}

}  // namespace smdist
