// SPDX-License-Identifier: Apache-2.0
// Fuzz target of lanes that continue over other connections: two lanes send each other messages,
// their connections end at any byte, and senders reuse the memory of what they have sent.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/little_endian.h"
#include "fuzz_target.h"
#include "pattern.h"
#include "smdist/errors.h"
#include "transport/lane.h"
#include "transport/lane_acknowledgement.h"

namespace smdist::fuzzing {
namespace {

constexpr uint64_t kMostUnacknowledged = 16 << 10;
constexpr size_t kNumberAt = 4;

// One side: a lane, the memory of what it sends, and the number of messages that have come.
class Side final : public Sink {
 public:
  Side() : lane(1) { lane.make_resumable(kMostUnacknowledged); }

  void on_connected(int) override {}
  Span on_header(int, const HeaderBytes& header) override {
    FUZZ_CHECK(get<uint32_t>(&header[kNumberAt]) == num_received);
    const size_t bytes = get<uint16_t>(&header[1]);
    place_ = std::make_unique<uint8_t[]>(bytes);
    return {place_.get(), bytes};
  }
  void on_message(int, const HeaderBytes& header) override {
    const size_t bytes = get<uint16_t>(&header[1]);
    FUZZ_CHECK(bytes < kMostPayload);
    FUZZ_CHECK(std::memcmp(place_.get(), pattern(num_received), bytes) == 0);
    place_.reset();
    ++num_received;
  }
  // Frees the memory, so that a sanitizer finds whoever reads it later.
  void on_sent(int, uint64_t token) override {
    FUZZ_CHECK(token == num_reported + 1);
    std::vector<uint8_t>& memory = payloads_[num_reported++];
    lane.detach_payloads({memory.data(), memory.size()});
    memory = {};
  }
  void on_peer_lost(int, const std::string&) override {}

  void send(FuzzInput& input) {
    Message message;
    const size_t bytes = input.number<uint16_t>() % kMostPayload;
    put<uint16_t>(&message.header[1], static_cast<uint16_t>(bytes));
    put<uint32_t>(&message.header[kNumberAt], static_cast<uint32_t>(num_sent));
    payloads_.emplace_back(pattern(num_sent), pattern(num_sent) + bytes);
    if (input.flag()) {
      message.payload = {payloads_.back().data(), bytes};
    } else {
      message.text.assign(payloads_.back().begin(), payloads_.back().end());
    }
    message.token = ++num_sent;
    lane.send(std::move(message));
  }

  Lane lane;
  uint64_t num_sent = 0;
  uint64_t num_reported = 0;
  uint64_t num_received = 0;

 private:
  std::deque<std::vector<uint8_t>> payloads_;
  std::unique_ptr<uint8_t[]> place_;
};

// Two sides with a connection, or between two.
class Conversation final {
 public:
  explicit Conversation(FuzzInput& input) {
    protection_.integrity = static_cast<Integrity>(input.below(3));
    connect(input.byte());
  }

  void step(FuzzInput& input) {
    Side& side = sides_[input.below(2)];
    switch (input.below(8)) {
      case 0:
      case 1:
        return side.send(input);
      case 2:
        return side.lane.write_early();
      case 3:
        return side.lane.probe();
      case 4:
        return cut(input);
      case 5:
        return write(side);
      default:
        return read(side);
    }
  }

  // Checks that all messages come, once.
  void finish() {
    if (!is_connected()) connect(1);
    for (int turn = 0; turn < 4096 && !is_done(); ++turn) {
      for (Side& side : sides_) {
        write(side);
        read(side);
      }
      if (!is_connected()) connect(1);
    }
    FUZZ_CHECK(is_done());
    for (Side& side : sides_) side.lane.lose(&side);
  }

 private:
  bool is_connected() const { return sides_[0].lane.is_live() && sides_[1].lane.is_live(); }
  bool is_done() const {
    return sides_[0].num_received == sides_[1].num_sent &&
           sides_[1].num_received == sides_[0].num_sent &&
           sides_[0].num_reported == sides_[0].num_sent &&
           sides_[1].num_reported == sides_[1].num_sent;
  }

  // The connection ends at one side or at both; the other side may still read what has come.
  void cut(FuzzInput& input) {
    if (!is_connected()) return connect(input.byte());
    const size_t how = input.below(3);
    for (size_t i : {0, 1}) {
      if (how == i || how == 2) sides_[i].lane.interrupt(&sides_[i]);
    }
    for (Side& side : sides_) {
      if (side.lane.is_live() && input.flag()) read(side);
    }
  }

  // Continues both lanes. key: of this handshake; each one has another.
  void connect(uint8_t key) {
    for (Side& side : sides_) {
      if (side.lane.is_live()) side.lane.interrupt(&side);
    }
    int ends[2];
    FUZZ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    const uint64_t received[] = {sides_[0].lane.received(), sides_[1].lane.received()};
    for (size_t i : {0, 1}) {
      Lane& lane = sides_[i].lane;
      FUZZ_CHECK(lane.can_resume_from(received[1 - i]));
      LaneKeys keys;
      keys.outgoing.fill(static_cast<uint8_t>(key + i));
      keys.incoming.fill(static_cast<uint8_t>(key + 1 - i));
      lane.resume(UniqueFd(ends[i]), received[1 - i]);
      lane.protect(protection_, keys);
    }
  }

  void write(Side& side) {
    if (!side.lane.is_live()) return;
    bool would_block = false;
    check(side, side.lane.write_some(&side, &would_block));
  }
  void read(Side& side) {
    if (side.lane.is_live()) check(side, side.lane.read_some(&side));
  }
  // A loss is the end of the connection, never a fault of the peer.
  void check(Side& side, const Lane::Loss& loss) {
    if (!loss) return;
    FUZZ_CHECK(side.lane.may_resume());
    side.lane.interrupt(&side);
  }

  Protection protection_;
  std::array<Side, 2> sides_;
};

FUZZ_TARGET(lane_resuming) {
  Conversation conversation(input);
  for (int step = 0; step < 96 && input.left() > 0; ++step) conversation.step(input);
  conversation.finish();
}

// Sink that takes every message.
class AnyMessage final : public Sink {
 public:
  void on_connected(int) override {}
  Span on_header(int, const HeaderBytes& header) override { return {nullptr, header[0]}; }
  void on_message(int, const HeaderBytes&) override {}
  void on_sent(int, uint64_t) override {}
  void on_peer_lost(int, const std::string&) override {}
};

// A member of the job acknowledges, and continues, what it likes: the lane ends, or keeps the
// rules.
FUZZ_TARGET(lane_acknowledged) {
  AnyMessage sink;
  Lane lane(1);
  lane.make_resumable(kMostUnacknowledged);
  UniqueFd peer;
  const auto connect = [&](uint64_t received) {
    int ends[2];
    FUZZ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    peer = UniqueFd(ends[1]);
    lane.resume(UniqueFd(ends[0]), received);
  };
  connect(0);
  for (int step = 0; step < 64 && input.left() > 0 && lane.is_live(); ++step) {
    Lane::Loss loss;
    bool would_block = false;
    std::array<char, 4096> bytes;
    switch (input.below(5)) {
      case 0: {
        Message message;
        message.text.assign(input.number<uint16_t>() % kMostPayload, 'x');
        lane.send(std::move(message));
        break;
      }
      case 1: {
        HeaderBytes frame = acknowledgement_of(input.number<uint32_t>());
        if (input.below(8) == 0) input.fill(frame);
        (void)!::send(peer.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
        loss = lane.read_some(&sink);
        break;
      }
      case 2:
        while (::recv(peer.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) continue;
        break;
      case 3: {
        lane.interrupt(&sink);
        const uint64_t received = input.number<uint32_t>();
        if (!lane.can_resume_from(received)) return;
        connect(received);
        break;
      }
      default:
        loss = lane.write_some(&sink, &would_block);
    }
    if (loss) return lane.lose(&sink);
  }
}

}  // namespace
}  // namespace smdist::fuzzing
