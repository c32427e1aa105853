// SPDX-License-Identifier: Apache-2.0
// Operations and the frames that move them. Faults are in faults.cc.
#include "engine/conductor.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "engine/request.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr size_t kIdleScratchBytes = 256 << 20;
constexpr size_t kMaxEarly = 1 << 16;  // READY frames of a peer; more is one gone wild
constexpr size_t kHistory = 64;        // operations per group
constexpr std::chrono::milliseconds kPatience{500};
constexpr int kChunksInFlight = 2;       // per peer: one leaves, one waits
constexpr size_t kSharedFrom = 8 << 10;  // shorter messages go with their frames

}  // namespace

Conductor::Conductor(const Options& options, Transport& transport, Completions& completions)
    : options_(options),
      transport_(transport),
      completions_(completions),
      names_(options.names),
      peers_(static_cast<size_t>(options.size)),
      pool_(kIdleScratchBytes) {
  for (size_t rank = names_.size(); rank < peers_.size(); ++rank) {
    names_.push_back("rank " + std::to_string(rank));
  }
  const Span arena = transport.own_arena();
  if (arena.bytes > 0) blocks_.emplace(arena, options.block_bytes, options.blocks_per_peer);
}

void Conductor::post(Submission submission) {
  if (submission.id.way == Way::kCollective || broken_) return begin(std::move(submission));
  if (submission.operation.peer == kAnyRank) connect_all(*submission.group);
  begin_all(matching_.post(std::move(submission), announced_));
  check_waiting();
}

// Any of them may be the one to send.
void Conductor::connect_all(const Group& group) {
  for (const int rank : group.members) {
    if (rank != options_.rank) transport_.connect(rank);
  }
}

void Conductor::begin_all(std::vector<Submission> submissions) {
  for (Submission& submission : submissions) begin(std::move(submission));
}

void Conductor::begin(Submission submission) {
  Buffer scratch = broken_ ? Buffer{} : scratch_for(submission);
  if (broken_) {
    --submission.group->pending;
    completions_.push(std::move(submission.operation.done), broken_);
    return;
  }
  submission.serial = ++last_serial_;
  const OperationId id = submission.id;
  deadlines_.insert({submission.deadline, id});
  Pending& pending =
      pending_.try_emplace(id, std::move(submission), std::move(scratch), pool_).first->second;
  for (const int member : pending.partners()) send_ready(pending, member);
  run(pending, pending.begin());
  meet_early(id);
  if (const Pending* still = find(id)) check_partners(*still);
}

Buffer Conductor::scratch_for(const Submission& submission) {
  const size_t bytes = submission.plan.scratch_bytes;
  try {
    return pool_.take(bytes);
  } catch (const std::bad_alloc&) {
    fail({FaultKind::kSystem, options_.rank,
          title_of(submission) + ": " + name_of_rank(options_.rank) + " has not the " +
              std::to_string(bytes) + " bytes of memory that it needs"},
         true);
    return {};
  }
}

// Those who announced the operation before we did.
void Conductor::meet_early(const OperationId& id) {
  const Announced::Descriptors descriptors = announced_.take(id);
  for (const auto& [rank, descriptor] : descriptors) --peer(rank).num_early;
  for (const auto& [rank, descriptor] : descriptors) {
    try {
      if (Pending* pending = find(id)) meet(*pending, rank, descriptor);
    } catch (const PeerError& error) {
      fail({FaultKind::kPeer, rank, name_of_rank(rank) + " " + error.what()}, true);
    }
  }
}

void Conductor::check_deadlines() {
  check_absent();
  check_waiting();
  if (deadlines_.empty() || deadlines_.begin()->first > Clock::now()) return;
  Pending& late = pending_.at(deadlines_.begin()->second);
  if (!extend(late)) fail_late(late);
}

// Who has posted and still keeps us waiting waits for somebody itself, whom it
// can name and we cannot: its verdict comes first, if it comes soon.
bool Conductor::extend(Pending& late) {
  Submission& submission = late.submission();
  if (submission.is_extended || !late.is_stuck_elsewhere()) return false;
  deadlines_.erase(deadlines_.begin());
  submission.is_extended = true;
  submission.deadline = Clock::now() + kPatience;
  deadlines_.insert({submission.deadline, submission.id});
  return true;
}

std::chrono::milliseconds Conductor::until_deadline() const {
  using std::chrono::milliseconds;
  constexpr milliseconds kLongest{60'000};
  Clock::time_point next = Clock::now() + kLongest;
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  if (!excuses_.empty()) next = std::min(next, *excuses_.begin());
  for (const Submission& receive : matching_.waiting()) next = std::min(next, receive.deadline);
  const auto left = next - Clock::now();
  const auto rounded = std::chrono::duration_cast<milliseconds>(left) + milliseconds(1);
  return std::clamp(rounded, milliseconds(0), kLongest);
}

// ------------------------------------------------------------------ frames out

void Conductor::send_text(int rank, Frame frame, std::string text) {
  frame.source = static_cast<uint32_t>(options_.rank);
  frame.length = text.size();
  Message message;
  message.header = encode(frame);
  message.text = std::move(text);
  transport_.send(rank, std::move(message));
}

void Conductor::send_ready(const Pending& pending, int member) {
  const Submission& submission = pending.submission();
  const Group& group = *submission.group;
  const DescriptorBytes bytes =
      encode(descriptor_for(submission.descriptor, submission.operation, member, group.size()));
  Frame frame = frame_of(submission.id);
  frame.type = FrameType::kReady;
  send_text(group.members[static_cast<size_t>(member)], frame,
            std::string(bytes.begin(), bytes.end()));
}

void Conductor::send_grant(const Pending& pending, uint32_t receive) {
  const Submission& submission = pending.submission();
  const Step& step = pending.step(receive);
  Frame frame = frame_of(submission.id);
  frame.type = FrameType::kGrant;
  frame.tag = step.tag;
  send_text(submission.group->members[static_cast<size_t>(step.peer)], frame, {});
}

void Conductor::pump(int rank) {
  Peer& to = peer(rank);
  while (const size_t bytes = to.outbox.front_bytes()) {
    const bool is_shared = bytes >= kSharedFrom && blocks_ && transport_.is_read_by(rank);
    if (is_shared ? !blocks_->has_room_for(rank) : to.chunks_in_flight == kChunksInFlight) break;
    if (is_shared) {
      pump_block(rank);
    } else {
      pump_chunk(rank);
    }
  }
  settle_departed();
}

// Sends a part of a message from where it lies.
void Conductor::pump_chunk(int rank) {
  const Chunk chunk = *peer(rank).outbox.next(options_.chunk_bytes);
  const Outgoing& whole = chunk.message;
  Frame frame = frame_of(whole.id);
  frame.type = FrameType::kData;
  frame.source = static_cast<uint32_t>(options_.rank);
  frame.tag = whole.tag;
  frame.offset = chunk.offset;
  frame.length = chunk.bytes;
  in_flight_[++last_token_] = {whole.id, whole.step, chunk.is_last};
  ++peer(rank).chunks_in_flight;
  const Span payload{whole.data + chunk.offset, chunk.bytes};
  transport_.send(rank, {encode(frame), payload, {}, last_token_});
}

// Copies a part of a message to a block and tells the peer to read it there.
void Conductor::pump_block(int rank) {
  const Chunk chunk = *peer(rank).outbox.next(blocks_->block_bytes());
  const Outgoing& whole = chunk.message;
  const uint32_t block = blocks_->put(
      rank, {whole.data + chunk.offset, chunk.bytes, find(whole.id)->submission().serial});
  Frame frame = frame_of(whole.id);
  frame.type = FrameType::kShared;
  frame.tag = whole.tag;
  frame.offset = chunk.offset;
  send_text(rank, frame, encode(Place{block, static_cast<uint32_t>(chunk.bytes)}));
  if (chunk.is_last) departed_.push_back({whole.id, whole.step, true});
}

// Steps that come after messages whose memory is free. They may bring forth more.
void Conductor::settle_departed() {
  if (std::exchange(is_settling_, true)) return;
  while (!departed_.empty()) {
    const InFlight message = departed_.front();
    departed_.pop_front();
    if (Pending* pending = find(message.id)) run(*pending, pending->sent(message.step));
  }
  is_settling_ = false;
}

void Conductor::release(int rank, uint32_t block) {
  Frame frame;
  frame.type = FrameType::kRelease;
  frame.tag = block;
  send_text(rank, frame, {});
}

void Conductor::on_sent(int rank, uint64_t token) {
  const auto found = in_flight_.find(token);
  if (found == in_flight_.end()) return;
  const InFlight chunk = found->second;
  in_flight_.erase(found);
  --peer(rank).chunks_in_flight;
  Pending* pending = chunk.is_last ? find(chunk.id) : nullptr;
  if (pending != nullptr) run(*pending, pending->sent(chunk.step));
  pump(rank);
}

// ------------------------------------------------------------------- frames in

Span Conductor::on_header(int rank, const HeaderBytes& header) {
  try {
    const Frame frame = decode(header);
    if (frame.source != static_cast<uint32_t>(rank)) {
      throw PeerError("sent a frame in the name of rank " + std::to_string(frame.source));
    }
    return frame.type == FrameType::kData ? place_data(rank, frame) : place_control(rank, frame);
  } catch (const PeerError& error) {
    fail({FaultKind::kPeer, rank, name_of_rank(rank) + " " + error.what()}, true);
    throw;
  }
}

Span Conductor::place_data(int rank, const Frame& frame) {
  if (broken_) return {nullptr, frame.length};
  const Pending* pending = find(id_of(frame, rank));
  if (pending == nullptr) throw PeerError("sent data of an operation that nobody asked for");
  return pending->place(pending->member_of(rank), frame.tag, frame.offset, frame.length);
}

Span Conductor::place_control(int rank, const Frame& frame) {
  std::vector<uint8_t>& control = peer(rank).control;
  control.resize(frame.length);
  return {control.data(), control.size()};
}

void Conductor::on_message(int rank, const HeaderBytes& header) {
  const Frame frame = decode(header);
  try {
    switch (frame.type) {
      case FrameType::kReady:
        return take_ready(rank, frame);
      case FrameType::kData:
        return take_data(rank, frame);
      case FrameType::kGrant:
        return take_grant(rank, frame);
      case FrameType::kShared:
        return take_shared(rank, frame);
      case FrameType::kRelease:
        return take_release(rank, frame);
      case FrameType::kAbort:
        return take_abort(rank);
      case FrameType::kGoodbye:
        peer(rank).presence = Presence::kLeft;
        return;
    }
  } catch (const PeerError& error) {
    fail({FaultKind::kPeer, rank, name_of_rank(rank) + " " + error.what()}, true);
    throw;
  }
}

void Conductor::take_ready(int rank, const Frame& frame) {
  DescriptorBytes bytes;
  std::copy_n(peer(rank).control.begin(), bytes.size(), bytes.begin());
  const Descriptor theirs = decode(bytes);
  if (broken_) return;
  const OperationId id = id_of(frame, rank);
  if (id.way == Way::kReceive && find(id) == nullptr) begin_all(matching_.announce(id));
  if (Pending* pending = find(id)) return meet(*pending, rank, theirs);
  if (broken_ || take_ready_of_past(rank, id, theirs)) return;
  if (peer(rank).num_early == kMaxEarly) {
    throw PeerError("is more than " + std::to_string(kMaxEarly) + " operations ahead");
  }
  if (!announced_.add(id, rank, theirs)) throw PeerError("announced the same operation twice");
  ++peer(rank).num_early;
}

void Conductor::take_data(int rank, const Frame& frame) {
  Pending* pending = find(id_of(frame, rank));
  if (pending == nullptr) return;  // failed while the payload came in
  run(*pending, pending->arrived(pending->member_of(rank), frame.tag, frame.length));
}

void Conductor::take_grant(int rank, const Frame& frame) {
  Pending* pending = find(id_of(frame, rank));
  if (broken_) return;
  if (pending == nullptr) throw PeerError("granted a message of an operation that nobody posted");
  run(*pending, pending->granted(pending->member_of(rank), frame.tag));
}

// The bytes are read where they lie, now or, if a sum reads them, with the others.
// Half of a peer's blocks at most wait for sums: the rest come back at once, so
// that an operation which waits for a third rank holds up no other.
void Conductor::take_shared(int rank, const Frame& frame) {
  if (broken_) return;
  const Place place = decode_place(peer(rank).control);
  const uint8_t* bytes = shared_bytes(rank, place);
  Pending* pending = find(id_of(frame, rank));
  if (pending == nullptr) throw PeerError("sent data of an operation that nobody asked for");
  const int member = pending->member_of(rank);
  const Span target = pending->place(member, frame.tag, frame.offset, place.bytes);
  const bool may_wait = 2 * peer(rank).num_leases < options_.blocks_per_peer;
  if (may_wait && pending->lend(frame.tag, place.bytes, {member, place.block, bytes})) {
    ++peer(rank).num_leases;
  } else {
    std::memcpy(target.data, bytes, place.bytes);
    release(rank, place.block);
  }
  run(*pending, pending->arrived(member, frame.tag, place.bytes));
}

const uint8_t* Conductor::shared_bytes(int rank, const Place& place) {
  const Span arena = transport_.arena_of(rank);
  const size_t offset = place.block * options_.block_bytes;
  const bool is_inside = place.bytes > 0 && place.bytes <= options_.block_bytes &&
                         offset + options_.block_bytes <= arena.bytes;
  if (!is_inside) throw PeerError("sent a place outside of the memory that it has handed over");
  return static_cast<const uint8_t*>(arena.data) + offset;
}

void Conductor::take_release(int rank, const Frame& frame) {
  if (!blocks_ || !blocks_->release(rank, frame.tag)) {
    throw PeerError("gave back a block that it did not have");
  }
  pump(rank);
}

// ------------------------------------------------------------------ operations

// Queues the sends that may leave, and ends the operation if that was all.
void Conductor::run(Pending& pending, const Pending::Moves& moves) {
  const Submission& submission = pending.submission();
  const OperationId id = submission.id;
  std::set<int> ranks;
  for (const uint32_t index : moves.sends) {
    const Step& step = pending.step(index);
    const Span message = pending.message_of(index);
    const int rank = submission.group->members[static_cast<size_t>(step.peer)];
    peer(rank).outbox.push(
        {id, index, step.tag, static_cast<uint8_t*>(message.data), message.bytes});
    ranks.insert(rank);
  }
  for (const uint32_t index : moves.grants) send_grant(pending, index);
  for (const Pending::Lease& lease : moves.releases) {
    const int rank = submission.group->members[static_cast<size_t>(lease.member)];
    --peer(rank).num_leases;
    release(rank, lease.block);
  }
  if (pending.is_done()) finish(id);
  for (const int rank : ranks) pump(rank);
}

// A peer has posted the operation, too.
void Conductor::meet(Pending& pending, int rank, const Descriptor& theirs) {
  const Submission& submission = pending.submission();
  const int member = pending.member_of(rank);
  if (pending.is_ready(member)) throw PeerError("announced the same operation twice");
  const Descriptor ours =
      descriptor_for(submission.descriptor, submission.operation, member, submission.group->size());
  if (!agree(ours, theirs)) {
    return fail_for_mismatch(submission.id, ours, rank, theirs);
  }
  run(pending, pending.member_ready(member));
}

void Conductor::finish(const OperationId& id) {
  const auto found = pending_.find(id);
  Submission& submission = found->second.submission();
  deadlines_.erase({submission.deadline, id});
  if (id.way == Way::kCollective) remember(submission);
  --submission.group->pending;
  completions_.push(std::move(submission.operation.done), nullptr);
  pending_.erase(found);
}

// Kept in order, although operations end in any.
void Conductor::remember(const Submission& submission) {
  const uint64_t sequence = submission.id.sequence;
  std::deque<Past>& past = history_[submission.id.group];
  const auto after = std::find_if(past.begin(), past.end(),
                                  [&](const Past& other) { return other.sequence > sequence; });
  past.insert(after, {sequence, submission.descriptor});
  if (past.size() > kHistory) past.pop_front();
}

Pending* Conductor::find(const OperationId& id) {
  const auto found = pending_.find(id);
  return found == pending_.end() ? nullptr : &found->second;
}

}  // namespace smdist
