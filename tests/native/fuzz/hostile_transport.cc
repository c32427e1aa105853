// SPDX-License-Identifier: Apache-2.0
#include "hostile_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fuzz_target.h"
#include "smdist/errors.h"

namespace smdist::fuzzing {

HostileTransport::HostileTransport(int size, uint32_t lanes, Span own, std::vector<Span> theirs)
    : num_lanes_(lanes),
      own_(own),
      theirs_(std::move(theirs)),
      lanes_(static_cast<size_t>(size) * lanes),
      is_connected_(static_cast<size_t>(size)),
      is_lost_(static_cast<size_t>(size)) {
  for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i].is_extra = i % lanes != 0;
}

bool HostileTransport::is_live(int peer) const {
  return is_connected_[static_cast<size_t>(peer)] && !is_lost_[static_cast<size_t>(peer)];
}

void HostileTransport::connect_peer(int peer) {
  if (is_connected_[static_cast<size_t>(peer)] || is_lost_[static_cast<size_t>(peer)]) return;
  is_connected_[static_cast<size_t>(peer)] = true;
  sink_->on_connected(peer);
}

void HostileTransport::lose_peer(int peer, const std::string& reason) {
  if (is_lost_[static_cast<size_t>(peer)]) return;
  is_lost_[static_cast<size_t>(peer)] = true;
  for (uint32_t number = 0; number < num_lanes_; ++number) {
    LaneState& lost = lane(peer, number);
    report(peer, lost);
    lost.reset();
  }
  sink_->on_peer_lost(peer, reason);
}

void HostileTransport::lose_lane(int peer, uint32_t number, const std::string& reason) {
  LaneState& lost = lane(peer, number);
  if (lost.is_lost) return;
  report(peer, lost);
  lost.reset();
  bool is_any_left = false;
  for (uint32_t other = 0; other < num_lanes_; ++other) {
    is_any_left = is_any_left || !lane(peer, other).is_lost;
  }
  if (!is_any_left) lose_peer(peer, reason);
}

void HostileTransport::deliver(int peer, uint32_t number, const uint8_t* data, size_t bytes) {
  connect_peer(peer);
  LaneState& from = lane(peer, number);
  if (from.is_lost) return;
  try {
    take(peer, from, data, bytes);
  } catch (const PeerError& error) {
    lose_lane(peer, number, error.what());
  }
}

void HostileTransport::take(int peer, LaneState& from, const uint8_t* data, size_t bytes) {
  while (bytes > 0) {
    size_t step = 0;
    if (from.is_open) {
      step = std::min(bytes, from.missing);
      if (from.place != nullptr) std::memcpy(from.place, data, step);
      take_payload(peer, from, step);
    } else {
      step = std::min(bytes, kHeaderBytes - from.header_bytes);
      std::memcpy(&from.header[from.header_bytes], data, step);
      from.header_bytes += step;
      if (from.header_bytes == kHeaderBytes) {
        from.header_bytes = 0;
        const Span place = from.is_extra ? sink_->on_extra_lane_header(peer, from.header)
                                         : sink_->on_header(peer, from.header);
        from.place = static_cast<uint8_t*>(place.data);
        from.missing = place.bytes;
        from.is_open = true;
        if (place.bytes == 0) take_payload(peer, from, 0);
      }
    }
    data += step;
    bytes -= step;
  }
}

void HostileTransport::take_payload(int peer, LaneState& from, size_t bytes) {
  if (from.place != nullptr) from.place += bytes;
  from.missing -= bytes;
  if (from.missing > 0) return;
  from.is_open = false;
  sink_->on_message(peer, from.header);
}

// Reports messages that have been sent. The sink may queue others.
void HostileTransport::report(int peer, LaneState& lane) {
  for (const uint64_t token : std::exchange(lane.unreported, {})) sink_->on_sent(peer, token);
}

// Reads all bytes of a message, so that the sanitizer sees memory that is gone.
void HostileTransport::read_payload(const Message& message) {
  static std::vector<uint8_t> copy;
  if (message.payload.bytes == 0) return;
  copy.resize(std::max(copy.size(), message.payload.bytes));
  std::memcpy(copy.data(), message.payload.data, message.payload.bytes);
}

void HostileTransport::send(int peer, Message message) {
  FUZZ_CHECK(message.lane < num_lanes_);
  if (!is_lost_[static_cast<size_t>(peer)] && !lane(peer, message.lane).is_lost)
    lane(peer, message.lane).queue.push_back({std::move(message), false});
}

void HostileTransport::write(int peer, uint32_t number, size_t messages) {
  LaneState& to = lane(peer, number);
  if (!is_live(peer)) return;
  report(peer, to);
  for (; messages > 0 && !to.queue.empty(); --messages) {
    read_payload(to.queue.front().message);
    const uint64_t token = to.queue.front().message.token;
    to.queue.pop_front();
    if (token != 0) to.unreported.push_back(token);
    report(peer, to);
  }
  if (!to.queue.empty()) to.queue.front().is_begun = true;
}

// Sends one message, and reports it later.
void HostileTransport::flush_peer(int peer) {
  LaneState& to = lane(peer, 0);
  if (!is_live(peer) || to.queue.empty()) return;
  read_payload(to.queue.front().message);
  if (to.queue.front().message.token != 0) to.unreported.push_back(to.queue.front().message.token);
  to.queue.pop_front();
}

uint32_t HostileTransport::num_lanes(int peer) {
  uint32_t number = 1;
  while (number < num_lanes_ && !lane(peer, number).is_lost) ++number;
  return number;
}

bool HostileTransport::is_read_by(int peer) {
  return theirs_[static_cast<size_t>(peer)].bytes > 0 && is_live(peer);
}

Span HostileTransport::arena_of(int peer) {
  return is_connected_[static_cast<size_t>(peer)] ? theirs_[static_cast<size_t>(peer)] : Span{};
}

void HostileTransport::release_payloads(const HeaderFilter& is_chosen) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    LaneState& each = lanes_[i];
    const auto peer = static_cast<int>(i / num_lanes_);
    std::deque<QueuedMessage> kept;
    for (QueuedMessage& waiting : each.queue) {
      Message& message = waiting.message;
      if (message.payload.bytes > 0 && is_chosen(peer, message.header)) {
        if (!waiting.is_begun) continue;
        message.text.assign(static_cast<const char*>(message.payload.data), message.payload.bytes);
        message.payload = {};
        message.token = 0;
      }
      kept.push_back(std::move(waiting));
    }
    each.queue = std::move(kept);
    if (each.is_open && is_chosen(peer, each.header)) each.place = nullptr;
  }
}

}  // namespace smdist::fuzzing
