// SPDX-License-Identifier: Apache-2.0
// What the conductor sends: frames, chunks and blocks.
#include <algorithm>
#include <utility>

#include "engine/conductor.h"
#include "engine/request.h"

namespace smdist {
namespace {

constexpr uint32_t kChunksInFlight = 2;  // per lane: one leaves, one waits
constexpr size_t kHastenFrom = 32 << 10;
constexpr size_t kSharedFrom = 8 << 10;  // shorter messages go with their frames

}  // namespace

void Conductor::send_text(int rank, Frame frame, std::string text, uint64_t token) {
  frame.source = static_cast<uint32_t>(options_.rank);
  frame.length = text.size();
  Message message;
  message.header = encode(frame);
  message.text = std::move(text);
  message.token = token;
  transport_.send(rank, std::move(message));
}

void Conductor::announce(Pending& pending, int member) {
  if (pending.sum() != nullptr) return announce_sum(pending, member);
  send_ready(pending, member, rider_for(pending, member));
}

// What may go with the announcement. Sends and receives wait for each other.
std::optional<uint32_t> Conductor::rider_for(Pending& pending, int member) {
  const Submission& submission = pending.submission();
  if (submission.id.way != Way::kCollective) return std::nullopt;
  const int rank = submission.group->members[static_cast<size_t>(member)];
  Peer& to = peer(rank);
  const bool is_shared = blocks_ && transport_.is_read_by(rank);
  if (is_shared && !blocks_->has_room_for(rank)) return std::nullopt;
  const size_t limit = is_shared ? std::min(options_.shared_rider_bytes, options_.block_bytes)
                                 : options_.rider_bytes;
  const size_t budget = kParkedBytes - std::min(kParkedBytes, to.rider_bytes);
  const auto rider = pending.take_rider(member, std::min(limit, budget));
  to.rider_bytes += pending.rider_bytes(member);
  return rider;
}

void Conductor::send_ready(const Pending& pending, int member, std::optional<uint32_t> rider) {
  const Submission& submission = pending.submission();
  const int rank = submission.group->members[static_cast<size_t>(member)];
  const DescriptorBytes bytes = encode(submission.descriptor_to(member));
  std::string text(bytes.begin(), bytes.end());
  Frame frame = frame_of(submission.id);
  frame.type = FrameType::kReady;
  if (!rider) return send_text(rank, frame, std::move(text));
  const Span message = pending.message_of(*rider);
  const auto* data = static_cast<const uint8_t*>(message.data);
  if (message.bytes >= kSharedFrom && blocks_ && transport_.is_read_by(rank)) {
    frame.type = FrameType::kReadyShared;
    const uint32_t block = blocks_->put(rank, {data, message.bytes, submission.serial});
    text += encode(Place{block, static_cast<uint32_t>(message.bytes)});
  } else {
    frame.type = FrameType::kReadyData;
    text.append(static_cast<const char*>(message.data), message.bytes);
  }
  frame.tag = pending.step(*rider).tag;
  in_flight_[++last_token_] = {submission.id, *rider, true, false};
  send_text(rank, frame, std::move(text), last_token_);
}

void Conductor::send_grant(const Pending& pending, uint32_t receive) {
  const Submission& submission = pending.submission();
  const Step& step = pending.step(receive);
  Frame frame = frame_of(submission.id);
  frame.type = FrameType::kGrant;
  frame.tag = step.tag;
  send_text(submission.group->members[static_cast<size_t>(step.peer)], frame, {});
}

// Long messages take turns; short ones keep to the lane of announcements.
uint32_t Conductor::next_lane(int rank, size_t bytes) {
  constexpr size_t kLong = 64 << 10;
  const uint32_t lanes = transport_.num_lanes(rank);
  return lanes > 1 && bytes >= kLong ? ++peer(rank).last_lane % lanes : 0;
}

void Conductor::pump(int rank) {
  Peer& to = peer(rank);
  const uint32_t most = kChunksInFlight * transport_.num_lanes(rank);
  while (const size_t bytes = to.outbox.front_bytes()) {
    const bool is_shared = bytes >= kSharedFrom && blocks_ && transport_.is_read_by(rank);
    if (is_shared ? !blocks_->has_room_for(rank) : to.chunks_in_flight >= most) break;
    if (is_shared) {
      pump_block(rank);
    } else {
      pump_chunk(rank);
    }
  }
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
  in_flight_[++last_token_] = {whole.id, whole.step, chunk.is_last, true};
  ++peer(rank).chunks_in_flight;
  const Span payload{whole.data + chunk.offset, chunk.bytes};
  transport_.send(rank, {encode(frame), payload, {}, last_token_, whole.lane});
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
  in_flight_[++last_token_] = {whole.id, whole.step, chunk.is_last, false};
  send_text(rank, frame, encode(Place{block, static_cast<uint32_t>(chunk.bytes)}), last_token_);
  // It reads while we go on, if it has a processor to do so.
  const bool is_worth_it = options_.pause.count() > 0 && chunk.bytes >= kHastenFrom;
  if (is_worth_it) transport_.hasten(rank);
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
  if (chunk.is_chunk) --peer(rank).chunks_in_flight;
  Pending* pending = chunk.is_last ? find(chunk.id) : nullptr;
  if (pending != nullptr) run(*pending, pending->sent(chunk.step));
  pump(rank);
}

}  // namespace smdist
