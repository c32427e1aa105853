// SPDX-License-Identifier: Apache-2.0
#include "engine/progress_engine.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <set>
#include <utility>

#include "engine/fault_messages.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

Announced announced_of(const Descriptor& descriptor) {
  return {descriptor.kind,  descriptor.dtype,      descriptor.op,       descriptor.scale,
          descriptor.bytes, descriptor.call_bytes, descriptor.to_bytes, false};
}

constexpr size_t kIdleScratchBytes = 256 << 20;

}  // namespace

ProgressEngine::ProgressEngine(const Options& options, Transport& transport,
                               CallbackExecutor& callbacks)
    : options_(options),
      names_(options),
      transport_(transport),
      callbacks_(callbacks),
      pool_(kIdleScratchBytes),
      unexpected_(options.size),
      sums_(options, transport),
      sender_(options, transport, sums_.own_blocks()),
      blocks_(options, transport),
      detector_(names_, options.size),
      late_(options, names_),
      faults_(options, sender_, detector_),
      payloads_(static_cast<size_t>(options.size)) {}

// Beginning and end of operations

void ProgressEngine::post(Submission submission) {
  submission.record = recorder_.add(submission);
  if (submission.id.role == Role::kCollective || error()) return begin(std::move(submission));
  if (submission.operation.peer == kAnyRank) connect_to_all(*submission.group);
  begin_all(matching_.post(std::move(submission), unexpected_));
  fail_if(detector_.check(matching_.waiting()));
}

// Connects to all members, because any of them may be the sender of a receive from any rank.
void ProgressEngine::connect_to_all(const Group& group) {
  for (const int rank : group.members) {
    if (rank != options_.rank) transport_.connect(rank);
  }
}

void ProgressEngine::begin_all(std::vector<Submission> submissions) {
  for (Submission& submission : submissions) begin(std::move(submission));
}

void ProgressEngine::begin(Submission submission) {
  if (!watched_.empty()) watched_.erase(submission.id);
  if (!error() && !submission.operation.refusal.empty()) refuse(submission);
  if (!error() && has_ended_early(submission)) return;
  SharedSum* const sum = error() ? nullptr : sums_.begin(submission);
  if (submission.may_be_shared() && sum == nullptr) submission.make_plan();
  Buffer scratch = error() ? Buffer{} : allocate_scratch(submission);
  if (error()) return complete(submission, error());
  submission.serial = ++last_serial_;
  const OperationId id = submission.id;
  if (id.role != Role::kCollective) recorder_.set_id(submission.record, id);
  detector_.watch(submission);
  if (id.role == Role::kCollective) late_.plan(submission.late_at);
  PendingOperation& pending =
      pending_.try_emplace(id, std::move(submission), std::move(scratch), pool_, transport_)
          .first->second;
  if (sum != nullptr) pending.share(*sum);
  const PendingOperation::Actions actions = pending.begin();
  for (const int member : pending.partners()) send_rtr(pending, member);
  perform(pending, actions);
  take_unexpected(id);
  if (const PendingOperation* still = find(id)) fail_if(detector_.check(*still));
}

Buffer ProgressEngine::allocate_scratch(const Submission& submission) {
  const size_t bytes = submission.plan.scratch_bytes;
  try {
    return pool_.take(bytes);
  } catch (const std::bad_alloc&) {
    fail(out_of_memory(names_, submission, bytes), true);
    return {};
  }
}

void ProgressEngine::send_rtr(PendingOperation& pending, int member) {
  if (pending.sum() == nullptr) return sender_.send_rtr(pending, member);
  sender_.send_rtr(pending, member, sums_.ticket_of(*pending.sum()));
}

// Processes the RTR frames that arrived before this rank posted the operation.
void ProgressEngine::take_unexpected(const OperationId& id) {
  for (const auto& [rank, ready] : unexpected_.take(id)) {
    try {
      if (PendingOperation* pending = find(id)) {
        accept_rtr(*pending, rank, ready.descriptor, ready.ticket);
        pending = find(id);
        const BufferedMessage& eager = ready.eager;
        if (pending != nullptr && !eager.bytes.empty()) {
          deliver_copy(*pending, rank, eager.tag, eager.bytes.data(), eager.bytes.size());
        }
      } else if (!error()) {
        report_if_differs(rank, id, ready.descriptor);
      }
    } catch (const PeerError& error) {
      fail(protocol_error(names_, rank, error.what()), true);
    }
  }
}

// Sends what the actions list, and ends the operation if it is complete.
void ProgressEngine::perform(PendingOperation& pending, const PendingOperation::Actions& actions) {
  const Submission& submission = pending.submission();
  const OperationId id = submission.id;
  std::set<int> ranks;
  for (const uint32_t send : actions.sends) {
    sender_.queue(pending, send);
    ranks.insert(submission.rank_of(pending.step(send).peer));
  }
  for (const uint32_t receive : actions.credits) sender_.send_credit(pending, receive);
  for (const PendingOperation::BorrowedBlock& block : actions.releases) {
    const int rank = submission.rank_of(block.member);
    blocks_.on_returned(rank);
    sender_.send_release(rank, block.block);
  }
  if (pending.is_done()) finish(id);
  for (const int rank : ranks) sender_.send_queued(rank);
}

void ProgressEngine::finish(const OperationId& id) {
  const auto found = pending_.find(id);
  Submission& submission = found->second.submission();
  detector_.unwatch(submission);
  if (submission.is_extended) late_.end_asking(id);
  if (id.role == Role::kCollective) history_.add(id, submission.descriptor);
  if (submission.operation.kind == Collective::kBarrier) flush_all(*submission.group);
  faults_.set_last_error(nullptr);
  found->second.detach_all();
  complete(submission, nullptr);
  pending_.erase(found);
}

// Passes the end of an operation to its callbacks.
void ProgressEngine::complete(Submission& submission, const std::exception_ptr& error) {
  recorder_.end(submission.record, error != nullptr);
  --submission.group->pending;
  callbacks_.push(submission.operation, error);
}

// Sends the frames of a barrier at once, because the process may end after it.
void ProgressEngine::flush_all(const Group& group) {
  for (const int rank : group.members) {
    if (rank != options_.rank) transport_.flush_peer(rank);
  }
}

PendingOperation* ProgressEngine::find(const OperationId& id) {
  const auto found = pending_.find(id);
  return found == pending_.end() ? nullptr : &found->second;
}

void ProgressEngine::advance_sums() {
  is_busy_ = false;
  if (sums_.is_idle()) return;
  for (const OperationId& id : sums_.ids()) {
    switch (sums_.advance(id)) {
      case SharedSums::Advance::kBlocked:
        break;
      case SharedSums::Advance::kMore:
        ++num_sum_chunks_;
        is_busy_ = true;
        break;
      case SharedSums::Advance::kDone:
        find(id)->end_sum();
        perform(*find(id), {});
        break;
    }
  }
  if (!is_busy_) sums_.enable_signals();
}

// Changes an operation from a sum in shared memory to a plan, because a member cannot use shared
// memory for it.
void ProgressEngine::replan(PendingOperation& pending) {
  Submission& submission = pending.submission();
  sums_.cancel(submission.id);
  submission.make_plan();
  Buffer scratch = allocate_scratch(submission);
  if (error()) return;
  pending.replan(std::move(scratch));
  perform(pending, pending.begin());
}

// Collectives that this rank has not posted

void ProgressEngine::watch(const OperationId& id, OnAnnounced found) {
  watched_.insert_or_assign(id, std::move(found));
  if (const UnexpectedRtr* ready = unexpected_.find(id)) {
    tell_announced(id, announced_of(ready->descriptor));
  } else if (disagreements_.find(id) != nullptr) {
    Announced announced;
    announced.has_ended = true;
    tell_announced(id, announced);
  }
}

void ProgressEngine::tell_announced(const OperationId& id, const Announced& announced) {
  const auto node = watched_.extract(id);
  if (!node.empty()) node.mapped()(announced);
}

// Ends the call of an operation in which this rank takes no part, unless it has ended already.
void ProgressEngine::refuse(const Submission& submission) {
  if (disagreements_.find(submission.id) != nullptr) return;
  const Operation& operation = submission.operation;
  Fault reason{FaultKind::kUsage, options_.rank, {}, {}, operation.refusal_details};
  reason.text = names_.own() + " " + operation.refusal;
  end_call(submission.id, reason, {});
}

// Frames of peers

Span ProgressEngine::on_header(int rank, const HeaderBytes& header) {
  try {
    const Frame frame = decode(header);
    if (frame.source != static_cast<uint32_t>(rank)) {
      throw PeerError("sent a frame that claims to come from rank " + std::to_string(frame.source));
    }
    if (frame.type != FrameType::kData) {
      payload(rank).resize(frame.length);
      return {payload(rank).data(), payload(rank).size()};
    }
    if (error()) return {nullptr, frame.length};
    PendingOperation* const pending = planned_operation(rank, frame, "data");
    if (pending == nullptr) return {nullptr, frame.length};
    const Span place =
        pending->place(pending->member_of(rank), frame.tag, frame.offset, frame.length);
    transport_.detach_payloads(place);
    return place;
  } catch (const PeerError& error) {
    fail(protocol_error(names_, rank, error.what()), true);
    throw;
  }
}

// Other frames than those of data use a buffer and an order of which there is one for each peer.
Span ProgressEngine::on_extra_lane_header(int rank, const HeaderBytes& header) {
  try {
    if (decode(header).type != FrameType::kData) {
      throw PeerError("sent a frame over an additional lane that belongs to lane 0");
    }
  } catch (const PeerError& error) {
    fail(protocol_error(names_, rank, error.what()), true);
    throw;
  }
  return on_header(rank, header);
}

void ProgressEngine::on_message(int rank, const HeaderBytes& header) {
  const Frame frame = decode(header);
  try {
    switch (frame.type) {
      case FrameType::kRtr:
      case FrameType::kRtrEager:
      case FrameType::kRtrEagerBlock:
      case FrameType::kRtrTicket:
        return on_rtr(rank, frame);
      case FrameType::kData:
        return on_data(rank, frame);
      case FrameType::kCredit:
        return on_credit(rank, frame);
      case FrameType::kDataBlock:
        return on_block(rank, frame);
      case FrameType::kReleaseBlock:
        sender_.on_release(rank, frame.tag);
        return sender_.send_queued(rank);
      case FrameType::kAbort:
        return on_abort(rank);
      case FrameType::kMismatch:
        return on_mismatch(rank, frame);
      case FrameType::kLate:
        return on_late(rank, frame);
      case FrameType::kLeave:
        return detector_.on_leave(rank);
    }
  } catch (const PeerError& error) {
    fail(protocol_error(names_, rank, error.what()), true);
    throw;
  }
}

void ProgressEngine::on_sent(int rank, uint64_t token) {
  const std::optional<FrameSender::SentMessage> sent = sender_.on_sent(rank, token);
  PendingOperation* pending = sent ? find(sent->id) : nullptr;
  if (pending != nullptr) perform(*pending, pending->sent(sent->step));
  sender_.send_queued(rank);
}

void ProgressEngine::on_rtr(int rank, const Frame& frame) {
  const RtrMessage ready = decode_rtr(frame.type, payload(rank));
  if (error()) return;
  const OperationId id = id_of(frame, rank);
  late_.on_posted(rank, id, ready.descriptor, turn_);
  if (const Fault* reason = disagreements_.find(id)) {
    discard_eager(rank, ready);
    return send_mismatch(rank, id, *reason);
  }
  if (id.role == Role::kReceive && find(id) == nullptr) begin_all(matching_.announce(id));
  if (PendingOperation* pending = find(id)) {
    accept_rtr(*pending, rank, ready.descriptor, ready.ticket);
    pending = find(id);
    if (pending == nullptr) return discard_eager(rank, ready);
    if (ready.has_eager()) deliver_eager(*pending, rank, frame, ready);
    return;
  }
  if (error() || is_past(rank, id, ready)) return;
  unexpected_.add(id, rank, {ready.descriptor, buffer_eager(rank, frame, ready), ready.ticket});
  tell_announced(id, announced_of(ready.descriptor));
}

// Processes the RTR frame of a peer for an operation that is pending here.
void ProgressEngine::accept_rtr(PendingOperation& pending, int rank, const Descriptor& theirs,
                                const std::optional<SharedSumTicket>& ticket) {
  const Submission& submission = pending.submission();
  const int member = pending.member_of(rank);
  if (pending.is_ready(member)) {
    throw PeerError(
        "reported the start of the same operation twice. Restart the job, and report this bug of "
        "smdist");
  }
  const Descriptor ours = submission.descriptor_to(member);
  if (!agree(ours, theirs)) {
    return end_call(submission.id, descriptor_mismatch(names_, submission.id, ours, rank, theirs),
                    {rank});
  }
  sender_.on_rtr(rank, pending.eager_bytes(member));
  const bool is_sum = pending.sum() != nullptr;
  const PendingOperation::Actions actions = pending.member_ready(member);
  if (pending.all_ready()) recorder_.start(submission.record);
  perform(pending, actions);
  if (!is_sum) return;  // a sum is still pending here
  if (ticket) {
    sums_.join(*pending.sum(), member, rank, *ticket);
  } else {
    replan(pending);
  }
}

// Delivers an eager message to an operation that is pending here.
void ProgressEngine::deliver_eager(PendingOperation& pending, int rank, const Frame& frame,
                                   const RtrMessage& ready) {
  if (ready.eager_block) return deliver_block(pending, rank, frame, *ready.eager_block);
  deliver_copy(pending, rank, frame.tag, ready.eager, ready.eager_bytes);
}

// Returns a copy of an eager message that arrived before this rank posted the operation. A message
// in a block is copied, too, because blocks have to be released soon.
BufferedMessage ProgressEngine::buffer_eager(int rank, const Frame& frame,
                                             const RtrMessage& ready) {
  BufferedMessage message{frame.tag, {ready.eager, ready.eager + ready.eager_bytes}};
  if (!ready.eager_block) return message;
  const uint8_t* bytes = blocks_.address(rank, *ready.eager_block);
  message.bytes.assign(bytes, bytes + ready.eager_block->bytes);
  sender_.send_release(rank, ready.eager_block->block);
  return message;
}

// Copies a whole message to its memory.
void ProgressEngine::deliver_copy(PendingOperation& pending, int rank, uint32_t tag,
                                  const uint8_t* bytes, size_t count) {
  const int member = pending.member_of(rank);
  const Span place = pending.place(member, tag, 0, count);
  transport_.detach_payloads(place);
  std::memcpy(place.data, bytes, count);
  perform(pending, pending.arrived(member, tag, count));
}

void ProgressEngine::on_data(int rank, const Frame& frame) {
  PendingOperation* pending = find(id_of(frame, rank));
  if (pending == nullptr) return;  // the operation failed while the payload was received
  perform(*pending, pending->arrived(pending->member_of(rank), frame.tag, frame.length));
}

void ProgressEngine::on_block(int rank, const Frame& frame) {
  const BlockRef block = decode_block_ref(payload(rank));
  PendingOperation* pending = planned_operation(rank, frame, "data");
  if (pending != nullptr) return deliver_block(*pending, rank, frame, block);
  if (!error()) sender_.send_release(rank, block.block);
}

void ProgressEngine::deliver_block(PendingOperation& pending, int rank, const Frame& frame,
                                   const BlockRef& block) {
  if (blocks_.deliver(pending, rank, frame, block)) sender_.send_release(rank, block.block);
  perform(pending, pending.arrived(pending.member_of(rank), frame.tag, block.bytes));
}

void ProgressEngine::on_credit(int rank, const Frame& frame) {
  PendingOperation* pending = planned_operation(rank, frame, "a credit");
  if (pending == nullptr) return;
  perform(*pending, pending->credited(pending->member_of(rank), frame.tag));
}

// Returns the operation that a frame belongs to; null if the engine has failed, or if the operation
// has ended because ranks disagreed, so that the frame must be discarded. If the operation is a sum
// in shared memory that not all members have joined, it changes to a plan first: the frame shows
// that its sender has done so already. content: what the frame contains, for the error text.
PendingOperation* ProgressEngine::planned_operation(int rank, const Frame& frame,
                                                    const std::string& content) {
  if (error()) return nullptr;
  const OperationId id = id_of(frame, rank);
  PendingOperation* pending = find(id);
  if (pending == nullptr && disagreements_.includes(id)) return nullptr;
  if (pending == nullptr) {
    throw PeerError("sent " + content + " for an operation that this rank has not posted");
  }
  if (pending->sum() == nullptr) return pending;
  if (pending->sum()->all_joined()) {
    throw PeerError(
        "sent a message for a sum in shared memory, which needs no messages. Restart the job, and "
        "report this bug of smdist");
  }
  replan(*pending);
  return find(id);
}

}  // namespace smdist
