// SPDX-License-Identifier: Apache-2.0
// Interruption of a lane, and its continuation over another connection; memory of the caller that
// is used no longer.
#include <algorithm>
#include <utility>

#include "smdist/errors.h"
#include "transport/lane.h"
#include "transport/lane_acknowledgement.h"

namespace smdist {
namespace {

// A rank acknowledges after so many bytes, or after a part of the bytes that the peer may send
// without: sooner in front of messages that are sent anyway.
constexpr uint64_t kAcknowledgeWithMessages = 64 << 10;
constexpr uint64_t kAcknowledgeAlone = 256 << 10;
constexpr uint64_t kPartWithMessages = 16;
constexpr uint64_t kPartAlone = 4;

bool overlaps(const Span& a, const Span& b) {
  const auto* first = static_cast<const uint8_t*>(a.data);
  const auto* second = static_cast<const uint8_t*>(b.data);
  return first < second + b.bytes && second < first + a.bytes;
}

}  // namespace

void Lane::interrupt(Sink* sink) {
  report(sink);
  stream_.reset();
  fd_.reset();
  silence_clock_.stop();
  has_sent_ = false;
  end_ = End::kNone;
  is_probing_ = false;
  low_watermark_ = 1;
  awaits_bulk_data_ = false;
}

// Puts the messages that the peer has not received in full back into the queue. The first of them
// continues within the message.
void Lane::resume(UniqueFd fd, uint64_t peer_received) {
  forget_until(peer_received);
  queue_.insert(queue_.begin(), std::make_move_iterator(sent_.begin()),
                std::make_move_iterator(sent_.end()));
  sent_.clear();
  uint64_t position = kept_from_;
  for (Outgoing& each : queue_) {
    each.sent = position < peer_received ? static_cast<size_t>(peer_received - position) : 0;
    position += length_of(each.message);
    if (position <= peer_received) throw PeerError("has received bytes that were not sent");
    if (position >= written_) break;  // nothing of the others has been sent
  }
  written_ = peer_received;
  announced_ = received_;
  if (received_ == 0 && peer_received == 0) restart();
  attach(std::move(fd));
  silence_clock_.begin(std::chrono::steady_clock::now());
}

// Begins the lane anew, because neither side has received anything: the keys of its tags may come
// from a handshake that only one side has finished.
void Lane::restart() {
  outgoing_check_.reset();
  incoming_check_.reset();
  header_bytes_ = 0;
  for (Outgoing& each : queue_) each.has_tags = false;
}

void Lane::end_resuming() {
  is_resumable_ = false;
  sent_.clear();
  num_references_ = 0;
}

void Lane::keep(Outgoing message) {
  const bool is_reference = !message.is_reported && message.message.payload.bytes > 0;
  message.is_reported = true;
  num_references_ += is_reference;
  sent_.push_back(std::move(message));
}

void Lane::copy_payload(Outgoing& kept) {
  Message& message = kept.message;
  message.text.assign(static_cast<const char*>(message.payload.data), message.payload.bytes);
  message.payload = {};
  num_references_ -= kept.is_reported;
}

void Lane::detach_payloads(const Span& memory) {
  for (std::deque<Outgoing>* const each : {&sent_, &queue_}) {
    for (Outgoing& kept : *each) {
      if (num_references_ == 0) return;
      const Span& payload = kept.message.payload;
      if (kept.is_reported && payload.bytes > 0 && overlaps(payload, memory)) copy_payload(kept);
    }
  }
}

void Lane::release_payloads(const Transport::HeaderFilter& is_chosen) {
  std::deque<Outgoing> kept;
  for (Outgoing& waiting : queue_) {
    Message& message = waiting.message;
    if (message.payload.bytes > 0 && is_chosen(peer_, message.header)) {
      if (waiting.sent == 0 && !waiting.has_tags) {
        num_references_ -= waiting.is_reported;
        continue;
      }
      copy_payload(waiting);
      message.token = 0;
    }
    kept.push_back(std::move(waiting));
  }
  queue_ = std::move(kept);
  for (Outgoing& each : sent_) {
    if (each.message.payload.bytes > 0 && is_chosen(peer_, each.message.header)) copy_payload(each);
  }
  if (incoming_.is_open && is_chosen(peer_, incoming_.header)) incoming_.data = nullptr;
}

bool Lane::owes_acknowledgement() const {
  if (!is_resumable_) return false;
  const uint64_t enough =
      queue_.empty() ? std::min(kAcknowledgeAlone, most_unacknowledged_ / kPartAlone)
                     : std::min(kAcknowledgeWithMessages, most_unacknowledged_ / kPartWithMessages);
  return is_probing_ || received_ - announced_ >= enough;
}

// Queues an acknowledgement, if one is due, before all messages that can wait.
void Lane::queue_acknowledgement() {
  if (!owes_acknowledgement()) return;
  is_probing_ = false;
  announced_ = received_;
  Outgoing frame;
  frame.message.header = acknowledgement_of(received_);
  frame.is_acknowledgement = true;
  const auto can_wait = [](const Outgoing& each) { return !must_go(each); };
  queue_.insert(std::find_if(queue_.begin(), queue_.end(), can_wait), std::move(frame));
}

void Lane::take_acknowledgement() {
  header_bytes_ = 0;
  const uint64_t position = acknowledged_in(incoming_.header);
  if (position > written_) throw PeerError("acknowledged bytes that this rank has not sent");
  // A frame of an earlier connection that has been sent again may say less than the handshake did.
  if (position > acknowledged_) forget_until(position);
}

// Forgets the messages that the peer has received in full.
void Lane::forget_until(uint64_t position) {
  acknowledged_ = position;
  while (!sent_.empty()) {
    Outgoing& first = sent_.front();
    const uint64_t end = kept_from_ + length_of(first.message);
    if (end > position) return;
    num_references_ -= first.message.payload.bytes > 0;
    kept_from_ = end;
    sent_.pop_front();
  }
}

}  // namespace smdist
