// SPDX-License-Identifier: Apache-2.0
// What the conductor makes of the frames of others.
#include <algorithm>
#include <cstring>
#include <string>

#include "engine/conductor.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr size_t kMaxEarly = 1 << 16;  // READY frames of a peer; more is one gone wild

bool has_rider(const Frame& frame) {
  return frame.type == FrameType::kReadyData || frame.type == FrameType::kReadyShared;
}

}  // namespace

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
  const Pending* pending = find_planned(id_of(frame, rank));
  if (broken_) return {nullptr, frame.length};
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
      case FrameType::kReadyData:
      case FrameType::kReadyShared:
      case FrameType::kReadyMeeting:
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
  if (Pending* pending = find(id)) {
    meet(*pending, rank, theirs, meeting_in(rank, frame));
    pending = find(id);
    if (pending != nullptr && has_rider(frame)) take_rider(*pending, rank, frame);
    return;
  }
  if (broken_ || take_ready_of_past(rank, id, theirs)) return;
  if (peer(rank).num_early == kMaxEarly) {
    throw PeerError("is more than " + std::to_string(kMaxEarly) + " operations ahead");
  }
  if (!announced_.add(id, rank, {theirs, park(rank, frame), meeting_in(rank, frame)})) {
    throw PeerError("announced the same operation twice");
  }
  ++peer(rank).num_early;
}

// The message that came with an announcement, for an operation that is posted.
void Conductor::take_rider(Pending& pending, int rank, const Frame& frame) {
  const std::vector<uint8_t>& control = peer(rank).control;
  const uint8_t* payload = control.data() + kDescriptorBytes;
  const size_t bytes = control.size() - kDescriptorBytes;
  if (frame.type == FrameType::kReadyShared) {
    return read_block(pending, rank, frame, decode_place({payload, payload + bytes}));
  }
  const int member = pending.member_of(rank);
  std::memcpy(pending.place(member, frame.tag, 0, bytes).data, payload, bytes);
  run(pending, pending.arrived(member, frame.tag, bytes));
}

// The same for one that is not: copied, since blocks are for those who read them soon.
Rider Conductor::park(int rank, const Frame& frame) {
  Rider rider{frame.tag, {}};
  if (!has_rider(frame)) return rider;
  Peer& from = peer(rank);
  const uint8_t* payload = from.control.data() + kDescriptorBytes;
  size_t bytes = from.control.size() - kDescriptorBytes;
  if (frame.type == FrameType::kReadyShared) {
    const Place place = decode_place({payload, payload + bytes});
    payload = shared_bytes(rank, place);
    bytes = place.bytes;
    release(rank, place.block);
  }
  from.early_bytes += bytes;
  if (from.early_bytes > kParkedBytes) throw PeerError("sent more than it may before its time");
  rider.bytes.assign(payload, payload + bytes);
  return rider;
}

void Conductor::take_data(int rank, const Frame& frame) {
  Pending* pending = find(id_of(frame, rank));
  if (pending == nullptr) return;  // failed while the payload came in
  run(*pending, pending->arrived(pending->member_of(rank), frame.tag, frame.length));
}

void Conductor::take_grant(int rank, const Frame& frame) {
  Pending* pending = find_planned(id_of(frame, rank));
  if (broken_) return;
  if (pending == nullptr) throw PeerError("granted a message of an operation that nobody posted");
  run(*pending, pending->granted(pending->member_of(rank), frame.tag));
}

// The bytes are read where they lie, now or, if a sum reads them, with the others.
// Half of a peer's blocks at most wait for sums: the rest come back at once, so
// that an operation which waits for a third rank holds up no other.
void Conductor::take_shared(int rank, const Frame& frame) {
  Pending* pending = broken_ ? nullptr : find_planned(id_of(frame, rank));
  if (broken_) return;
  if (pending == nullptr) throw PeerError("sent data of an operation that nobody asked for");
  read_block(*pending, rank, frame, decode_place(peer(rank).control));
}

void Conductor::read_block(Pending& pending, int rank, const Frame& frame, const Place& place) {
  const uint8_t* bytes = shared_bytes(rank, place);
  const int member = pending.member_of(rank);
  const Span target = pending.place(member, frame.tag, frame.offset, place.bytes);
  const bool may_wait = 2 * peer(rank).num_leases < options_.blocks_per_peer;
  if (may_wait && pending.lend(frame.tag, place.bytes, {member, place.block, bytes})) {
    ++peer(rank).num_leases;
  } else {
    std::memcpy(target.data, bytes, place.bytes);
    release(rank, place.block);
  }
  run(pending, pending.arrived(member, frame.tag, place.bytes));
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

}  // namespace smdist
