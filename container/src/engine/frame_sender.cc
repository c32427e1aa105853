// SPDX-License-Identifier: Apache-2.0
#include "engine/frame_sender.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/unexpected_queue.h"
#include "messaging/block_ref.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr uint32_t kFragmentsInFlightPerLane = 2;  // one is being sent, one is queued
constexpr size_t kFlushFromBytes = 32 << 10;
constexpr size_t kBlockFromBytes = 8 << 10;  // shorter messages are sent in their frames
constexpr size_t kOtherLanesFromBytes = 64 << 10;

}  // namespace

FrameSender::FrameSender(const Options& options, Transport& transport, const Span& blocks)
    : options_(options), transport_(transport), peers_(static_cast<size_t>(options.size)) {
  if (blocks.bytes > 0) blocks_.emplace(blocks, options.block_bytes, options.blocks_per_peer);
}

void FrameSender::send(int rank, Frame frame, std::string payload, uint64_t token) {
  frame.source = static_cast<uint32_t>(options_.rank);
  frame.length = payload.size();
  Message message;
  message.header = encode(frame);
  message.text = std::move(payload);
  message.token = token;
  transport_.send(rank, std::move(message));
}

// Returns the step of the message that is sent in the RTR frame, if there is one. Sends and
// receives have none, because a send is complete only when its receive has been posted.
std::optional<uint32_t> FrameSender::take_eager(PendingOperation& pending, int member) {
  const Submission& submission = pending.submission();
  if (submission.id.role != Role::kCollective) return std::nullopt;
  const int rank = submission.rank_of(member);
  const bool is_shared = shares_blocks_with(rank);
  if (is_shared && !blocks_->has_free_block_for(rank)) return std::nullopt;
  const size_t limit = is_shared ? std::min(options_.shared_eager_bytes, options_.block_bytes)
                                 : options_.eager_bytes;
  size_t& buffered = peer(rank).eager_bytes;
  const size_t budget = kMaxEagerBytesPerPeer - std::min(kMaxEagerBytesPerPeer, buffered);
  const auto step = pending.take_eager(member, std::min(limit, budget));
  buffered += pending.eager_bytes(member);
  return step;
}

void FrameSender::send_rtr(PendingOperation& pending, int member) {
  const std::optional<uint32_t> eager = take_eager(pending, member);
  const Submission& submission = pending.submission();
  const int rank = submission.rank_of(member);
  const DescriptorBytes descriptor = encode(submission.descriptor_to(member));
  std::string payload(descriptor.begin(), descriptor.end());
  Frame frame = frame_of(submission.id);
  frame.type = FrameType::kRtr;
  if (!eager) return send(rank, frame, std::move(payload));
  const Span message = pending.message_of(*eager);
  const auto* data = static_cast<const uint8_t*>(message.data);
  if (message.bytes >= kBlockFromBytes && shares_blocks_with(rank)) {
    frame.type = FrameType::kRtrEagerBlock;
    const uint32_t block = blocks_->put(rank, {data, message.bytes, submission.serial});
    payload += encode(BlockRef{block, static_cast<uint32_t>(message.bytes)});
  } else {
    frame.type = FrameType::kRtrEager;
    payload.append(static_cast<const char*>(message.data), message.bytes);
  }
  frame.tag = pending.step(*eager).tag;
  const uint64_t token = track({{submission.id, *eager}, true, false, rank});
  send(rank, frame, std::move(payload), token);
}

void FrameSender::send_rtr(const PendingOperation& pending, int member,
                           const SharedSumTicket& ticket) {
  const Submission& submission = pending.submission();
  const DescriptorBytes descriptor = encode(submission.descriptor_to(member));
  Frame frame = frame_of(submission.id);
  frame.type = FrameType::kRtrTicket;
  send(submission.rank_of(member), frame,
       std::string(descriptor.begin(), descriptor.end()) + encode(ticket));
}

void FrameSender::send_credit(const PendingOperation& pending, uint32_t receive) {
  const Submission& submission = pending.submission();
  const Step& step = pending.step(receive);
  Frame frame = frame_of(submission.id);
  frame.type = FrameType::kCredit;
  frame.tag = step.tag;
  send(submission.rank_of(step.peer), frame);
}

void FrameSender::send_release(int rank, uint32_t block) {
  Frame frame;
  frame.type = FrameType::kReleaseBlock;
  frame.tag = block;
  send(rank, frame);
}

void FrameSender::queue(const PendingOperation& pending, uint32_t index) {
  const Submission& submission = pending.submission();
  const Step& step = pending.step(index);
  const Span message = pending.message_of(index);
  const int rank = submission.rank_of(step.peer);
  peer(rank).send_queue.push({submission.id, index, step.tag, static_cast<uint8_t*>(message.data),
                              message.bytes, next_lane(rank, message.bytes), submission.serial});
}

// Returns the lane of a message: long messages use all lanes in turn, short ones lane 0, like RTR
// frames.
uint32_t FrameSender::next_lane(int rank, size_t bytes) {
  const uint32_t lanes = transport_.num_lanes(rank);
  return lanes > 1 && bytes >= kOtherLanesFromBytes ? ++peer(rank).last_lane % lanes : 0;
}

void FrameSender::send_queued(int rank) {
  PeerOutput& to = peer(rank);
  const uint32_t max_in_flight = kFragmentsInFlightPerLane * transport_.num_lanes(rank);
  while (const size_t bytes = to.send_queue.front_bytes()) {
    const bool uses_block = bytes >= kBlockFromBytes && shares_blocks_with(rank);
    if (uses_block ? !blocks_->has_free_block_for(rank) : to.fragments_in_flight >= max_in_flight)
      break;
    if (uses_block) {
      send_block(rank);
    } else {
      send_fragment(rank);
    }
  }
}

// Returns the token that is passed to on_sent() when the fragment has been sent.
uint64_t FrameSender::track(const InFlight& part) {
  in_flight_[++last_token_] = part;
  return last_token_;
}

// Sends a fragment directly from the caller's memory.
void FrameSender::send_fragment(int rank) {
  const Fragment fragment = *peer(rank).send_queue.next(options_.fragment_bytes);
  const OutgoingMessage& whole = fragment.message;
  Frame frame = frame_of(whole.id);
  frame.type = FrameType::kData;
  frame.source = static_cast<uint32_t>(options_.rank);
  frame.tag = whole.tag;
  frame.offset = fragment.offset;
  frame.length = fragment.bytes;
  const uint64_t token = track({{whole.id, whole.step}, fragment.is_last, true, rank});
  ++peer(rank).fragments_in_flight;
  const Span payload{whole.data + fragment.offset, fragment.bytes};
  transport_.send(rank, {encode(frame), payload, {}, token, whole.lane});
}

// Copies a fragment to a block of shared memory, and sends the peer a reference to the block.
void FrameSender::send_block(int rank) {
  const Fragment fragment = *peer(rank).send_queue.next(blocks_->block_bytes());
  const OutgoingMessage& whole = fragment.message;
  const uint32_t block =
      blocks_->put(rank, {whole.data + fragment.offset, fragment.bytes, whole.operation_serial});
  Frame frame = frame_of(whole.id);
  frame.type = FrameType::kDataBlock;
  frame.tag = whole.tag;
  frame.offset = fragment.offset;
  const uint64_t token = track({{whole.id, whole.step}, fragment.is_last, false, rank});
  send(rank, frame, encode(BlockRef{block, static_cast<uint32_t>(fragment.bytes)}), token);
  // If the peer has a processor of its own, it reads this block while we fill the next one.
  const bool is_worth_it = options_.pause.count() > 0 && fragment.bytes >= kFlushFromBytes;
  if (is_worth_it) transport_.flush_peer(rank);
}

std::optional<FrameSender::SentMessage> FrameSender::on_sent(int rank, uint64_t token) {
  const auto found = in_flight_.find(token);
  if (found == in_flight_.end()) return std::nullopt;
  const InFlight part = found->second;
  in_flight_.erase(found);
  if (part.is_fragment) --peer(rank).fragments_in_flight;
  if (!part.is_last) return std::nullopt;
  return part.message;
}

void FrameSender::on_release(int rank, uint32_t block) {
  if (!blocks_ || !blocks_->release(rank, block)) {
    throw PeerError("released a block of shared memory that it was not reading");
  }
}

void FrameSender::on_peer_lost(int rank) {
  peer(rank).send_queue.clear();
  if (blocks_) blocks_->release_all(rank);
}

void FrameSender::drop_call(const OperationId& call) {
  for (PeerOutput& each : peers_) each.send_queue.drop_call(call);
  for (auto next = in_flight_.begin(); next != in_flight_.end();) {
    const InFlight& part = next->second;
    const bool is_of_call = call_of(part.message.id) == call_of(call);
    if (is_of_call && part.is_fragment) --peer(part.rank).fragments_in_flight;
    next = is_of_call ? in_flight_.erase(next) : std::next(next);
  }
}

void FrameSender::clear() {
  in_flight_.clear();
  for (PeerOutput& each : peers_) {
    each.send_queue.clear();
    each.fragments_in_flight = 0;
    each.eager_bytes = 0;
  }
}

}  // namespace smdist
