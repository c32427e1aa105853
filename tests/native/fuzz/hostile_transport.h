// SPDX-License-Identifier: Apache-2.0
// Transport whose peers are the input of a fuzz target. It has lanes and shared memory, but no
// sockets, threads or clock, so that the same input always does the same.
#pragma once

#include <array>
#include <deque>
#include <string>
#include <vector>

#include "smdist/transport.h"

namespace smdist::fuzzing {

// Delivers bytes of hostile peers to the sink, as the lanes of TcpTransport do: bytes of one lane
// in order, those of different lanes in the order of the calls.
class HostileTransport final : public Transport {
 public:
  // own, theirs: arenas of this rank, and of each peer by rank; empty: the rank shares no memory.
  HostileTransport(int size, uint32_t lanes, Span own, std::vector<Span> theirs);

  // Let bytes of a peer arrive.
  void deliver(int peer, uint32_t lane, const uint8_t* data, size_t bytes);
  // Let the connection be made, and be lost.
  void connect_peer(int peer);
  void lose_peer(int peer, const std::string& reason);
  void lose_lane(int peer, uint32_t lane, const std::string& reason);
  // Send queued messages of a lane: at most `messages` in full, and then the beginning of another.
  void write(int peer, uint32_t lane, size_t messages);
  // Return whether the peer is connected.
  bool is_live(int peer) const;

  Endpoint endpoint() const override { return {}; }
  void start(const std::vector<Endpoint>&, Sink* sink) override { sink_ = sink; }
  void send(int peer, Message message) override;
  void flush_peer(int peer) override;
  uint32_t num_lanes(int peer) override;
  Span own_arena() override { return own_; }
  bool is_read_by(int peer) override;
  Span arena_of(int peer) override;
  void release_payloads(const HeaderFilter& is_chosen) override;
  void poll(std::chrono::milliseconds) override {}
  void await(std::chrono::milliseconds, SpinPolicy&) override {}
  std::chrono::milliseconds max_await(std::chrono::milliseconds timeout) const override {
    return timeout;
  }
  bool is_quiet() const override { return true; }
  void wake() override {}
  void clear_wake() override {}
  void close(std::chrono::milliseconds) override { sink_ = nullptr; }

 private:
  struct QueuedMessage {
    Message message;
    bool is_begun = false;  // sent in part
  };
  struct LaneState {
    void reset() {
      const bool was_extra = is_extra;
      *this = {};
      is_extra = was_extra;
      is_lost = true;
    }

    bool is_extra = false;  // another lane than lane 0
    bool is_lost = false;
    bool is_open = false;  // a header has arrived, but not its whole payload
    HeaderBytes header{};
    size_t header_bytes = 0;
    uint8_t* place = nullptr;
    size_t missing = 0;
    std::deque<QueuedMessage> queue;
    std::vector<uint64_t> unreported;
  };

  LaneState& lane(int peer, uint32_t number) {
    return lanes_[static_cast<size_t>(peer) * num_lanes_ + number];
  }
  void take(int peer, LaneState& lane, const uint8_t* data, size_t bytes);
  void take_payload(int peer, LaneState& lane, size_t bytes);
  void report(int peer, LaneState& lane);
  static void read_payload(const Message& message);

  const uint32_t num_lanes_;
  const Span own_;
  const std::vector<Span> theirs_;
  Sink* sink_ = nullptr;
  std::vector<LaneState> lanes_;  // by peer and lane
  std::vector<bool> is_connected_;
  std::vector<bool> is_lost_;
};

}  // namespace smdist::fuzzing
