// SPDX-License-Identifier: Apache-2.0
// Disagreements of ranks about a call: it ends, with all of its operations, on all ranks on which
// it has not ended yet.
//
// Each rank that learns of a disagreement sends a MISMATCH frame to every rank that has received an
// RTR frame of it for the call, or has sent one to it, and answers each RTR frame that comes later.
// So every rank that waits for another one in this call learns of it, in any order of events, and a
// rank that posts the call later ends it at once. Every call takes one number on every rank,
// however it ends, so later calls match.
//
// The frame comes behind the sender's RTR frames for the call, on the same lane. So its receiver
// has discarded eager messages of the call before it gets later ones. Data on other lanes may
// arrive afterwards; they are discarded, because Disagreements knows the call.
#include <algorithm>
#include <utility>

#include "engine/fault_messages.h"
#include "engine/progress_engine.h"
#include "smdist/errors.h"

namespace smdist {

// Ends an operation that is about to begin if its call has ended already. Returns whether it has.
bool ProgressEngine::has_ended_early(Submission& submission) {
  const Fault* reason = disagreements_.find(submission.id);
  if (reason == nullptr) return false;
  const std::exception_ptr error = error_of(*reason);
  disagreements_.on_posted(submission.id);
  connect_to_all(*submission.group);  // members may wait for this rank to connect
  faults_.set_last_error(error);
  complete(submission, error);
  return true;
}

// Ends all operations of a call. informed: the ranks that must learn of it, apart from those with
// which the operations exchange messages. id: a copy, because the operation is destroyed here.
void ProgressEngine::end_call(OperationId id, const Fault& reason, std::set<int> informed) {
  std::vector<PendingOperation*> operations;
  for (auto next = pending_.lower_bound(call_of(id));
       next != pending_.end() && call_of(next->first) == call_of(id); ++next) {
    operations.push_back(&next->second);
  }
  if (id.role == Role::kCollective) {
    informed.merge(unexpected_.drop_call(id));
    disagreements_.add(id, reason, !operations.empty());
    Announced announced;
    announced.has_ended = true;
    if (operations.empty()) tell_announced(call_of(id), announced);
  }
  release_payloads(id);
  for (PendingOperation* each : operations) end_early(*each, reason, informed);
  for (const int rank : informed) {
    send_mismatch(rank, id, reason);
    sender_.send_queued(rank);
  }
}

// Stops all use of the memory of a call's operations, because callers may reuse it as soon as they
// receive the error.
void ProgressEngine::release_payloads(const OperationId& id) {
  transport_.release_payloads([&](int rank, const HeaderBytes& header) {
    const Frame frame = decode(header);
    const bool is_own = frame.source == static_cast<uint32_t>(options_.rank);
    OperationId other = id_of(frame, rank);
    if (is_own) other.role = frame.role;
    return call_of(other) == call_of(id);
  });
  sender_.drop_call(id);
}

// Ends one operation, and adds the ranks with which it exchanges messages to `informed`.
void ProgressEngine::end_early(PendingOperation& pending, const Fault& reason,
                               std::set<int>& informed) {
  Submission& submission = pending.submission();
  const OperationId id = submission.id;
  for (const int member : pending.partners()) {
    const int rank = submission.rank_of(member);
    informed.insert(rank);
    if (!pending.is_ready(member)) sender_.on_rtr(rank, pending.eager_bytes(member));
  }
  for (const PendingOperation::BorrowedBlock& block : pending.borrowed()) {
    const int rank = submission.rank_of(block.member);
    blocks_.on_returned(rank);
    sender_.send_release(rank, block.block);
  }
  if (pending.sum() != nullptr) sums_.cancel(id);
  detector_.unwatch(submission);
  const std::exception_ptr error = error_of(reason);
  faults_.set_last_error(error);
  complete(submission, error);
  pending_.erase(id);
}

void ProgressEngine::send_mismatch(int rank, const OperationId& id, const Fault& reason) {
  Frame frame = frame_of(call_of(id));
  frame.type = FrameType::kMismatch;
  if (!detector_.is_connected(rank)) awaiting_mismatch_.insert(rank);
  sender_.send(rank, frame, encode(reason, kMaxMismatchBytes));
}

bool ProgressEngine::has_uninformed_peers() const {
  return faults_.has_uninformed_peers() ||
         std::any_of(awaiting_mismatch_.begin(), awaiting_mismatch_.end(), [this](int rank) {
           return !detector_.is_connected(rank) && !detector_.is_lost(rank);
         });
}

void ProgressEngine::on_mismatch(int rank, const Frame& frame) {
  const Fault reason = decode_fault(std::string(payload(rank).begin(), payload(rank).end()));
  if (reason.kind != FaultKind::kUsage) {
    throw PeerError("reported a disagreement of ranks with a fault of another kind");
  }
  if (error()) return;
  const OperationId id = call_of(id_of(frame, rank));
  const auto first = pending_.lower_bound(id);
  const bool is_pending = first != pending_.end() && call_of(first->first) == id;
  if (is_pending) first->second.member_of(rank);  // throws if the rank is not a member
  const bool is_unposted =
      id.role == Role::kCollective && !disagreements_.includes(id) && !history_.is_past(id);
  if (is_pending || is_unposted) end_call(id, reason, {});
}

// Returns whether the announced operation has ended here already, which means that its sender calls
// a different one: the sender waits for this rank, which it must learn.
bool ProgressEngine::is_past(int rank, const OperationId& id, const RtrMessage& ready) {
  if (id.role != Role::kCollective) {
    if (matching_.was_posted(id)) {
      throw PeerError("announced a message again that it has already sent");
    }
    return false;
  }
  if (!history_.is_past(id)) return false;
  discard_eager(rank, ready);
  const Descriptor* ours = history_.find(id);
  if (ours == nullptr) {
    fail(collective_count_mismatch(names_, id, rank, ready.descriptor), true);
  } else if (agree(*ours, ready.descriptor)) {
    throw PeerError(
        "reported the start of an operation that has ended. Restart the job, and report "
        "this bug of smdist");
  }
  report_if_differs(rank, id, ready.descriptor);
  return true;
}

// Tells a rank that it called a different operation under the number of one that has ended here.
void ProgressEngine::report_if_differs(int rank, const OperationId& id, const Descriptor& theirs) {
  if (const Fault* reason = disagreements_.find(id)) return send_mismatch(rank, id, *reason);
  const Descriptor* ours = id.role == Role::kCollective ? history_.find(id) : nullptr;
  if (ours == nullptr || agree(*ours, theirs)) return;
  send_mismatch(rank, id, descriptor_mismatch(names_, id, *ours, rank, theirs));
}

// Gives back the block of an eager message that is not needed.
void ProgressEngine::discard_eager(int rank, const RtrMessage& ready) {
  if (ready.eager_block && !error()) sender_.send_release(rank, ready.eager_block->block);
}

}  // namespace smdist
