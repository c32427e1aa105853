// SPDX-License-Identifier: Apache-2.0
// Fuzz target of a lane over a socket pair: messages in both directions, cut anywhere, with a
// receiver that discards, refuses or stops using payloads.
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

namespace smdist::fuzzing {
namespace {

// Request to the receiver, encoded in the first byte of a header.
enum class Treatment : uint8_t { kTake, kDiscard, kRefuseHeader, kRefuseMessage };

Treatment treatment_of(const HeaderBytes& header) { return static_cast<Treatment>(header[0] % 4); }
size_t payload_bytes(const HeaderBytes& header) { return get<uint16_t>(&header[1]) % kMostPayload; }

// Receives messages into memory of exactly their length, and checks what has arrived.
class Receiver final : public Sink {
 public:
  void on_connected(int) override {}
  Span on_header(int, const HeaderBytes& header) override {
    if (treatment_of(header) == Treatment::kRefuseHeader) throw PeerError("is refused");
    const size_t bytes = payload_bytes(header);
    if (treatment_of(header) == Treatment::kDiscard) return {nullptr, bytes};
    place_ = std::make_unique<uint8_t[]>(bytes);
    return {place_.get(), bytes};
  }
  void on_message(int, const HeaderBytes& header) override {
    if (place_ != nullptr) {
      FUZZ_CHECK(std::memcmp(place_.get(), pattern(received_), payload_bytes(header)) == 0);
    }
    place_.reset();
    ++received_;
    if (treatment_of(header) == Treatment::kRefuseMessage) throw PeerError("is refused");
  }
  void on_sent(int, uint64_t token) override { FUZZ_CHECK(token == ++reported_); }
  void on_peer_lost(int, const std::string&) override {}

  void drop_payload() { place_.reset(); }

 private:
  size_t received_ = 0;
  uint64_t reported_ = 0;
  std::unique_ptr<uint8_t[]> place_;
};

// The two ends of a connection, and the bytes that the peer still has to send.
class LaneRun final {
 public:
  LaneRun() : lane_(1) {
    int ends[2];
    FUZZ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    lane_.attach(UniqueFd(ends[0]));
    peer_ = UniqueFd(ends[1]);
  }

  void step(FuzzInput& input) {
    switch (input.below(8)) {
      case 0:
        return add_message(input);
      case 1:
      case 2:
        return send_from_peer(input.number<uint16_t>());
      case 3:
        return end_if(lane_.read_some(&receiver_));
      case 4:
        return send_to_peer(input);
      case 5: {
        bool would_block = false;
        return end_if(lane_.write_some(&receiver_, &would_block));
      }
      case 6:
        return receive_at_peer(input.byte());
      case 7:
        return rarely(input);
    }
  }
  bool is_live() const { return lane_.is_live(); }

  // Checks that the peer has received the messages in full, if nothing has been dropped.
  void finish() {
    while (is_live() && lane_.has_work()) {
      bool would_block = false;
      end_if(lane_.write_some(&receiver_, &would_block));
      receive_at_peer(255);
      if (!peer_.is_open()) break;
    }
    receive_at_peer(255);
    FUZZ_CHECK(expected_.compare(0, arrived_, arrived_text_) == 0);
    if (is_live() && peer_.is_open()) FUZZ_CHECK(arrived_ == expected_.size());
    lane_.lose(&receiver_);
    FUZZ_CHECK(!lane_.is_live() && lane_.is_lost());
  }

 private:
  void add_message(FuzzInput& input) {
    HeaderBytes header{};
    for (size_t i = 0; i < 3; ++i) header[i] = input.byte();
    unsent_.append(header.begin(), header.end());
    const uint8_t* const payload = pattern(num_messages_++);
    unsent_.append(payload, payload + payload_bytes(header));
  }
  void send_from_peer(size_t bytes) {
    const ssize_t sent = ::send(peer_.get(), unsent_.data(), std::min(bytes, unsent_.size()),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) unsent_.erase(0, static_cast<size_t>(sent));
  }
  void send_to_peer(FuzzInput& input) {
    Message message;
    message.header.fill(input.byte());
    message.token = ++num_sent_;
    const size_t bytes = input.number<uint16_t>() % kMostPayload;
    expected_.append(message.header.begin(), message.header.end());
    if (input.flag()) {
      payloads_.emplace_back(bytes, input.byte());
      message.payload = {payloads_.back().data(), bytes};
      expected_.append(payloads_.back().begin(), payloads_.back().end());
    } else {
      message.text.assign(bytes, static_cast<char>(input.byte()));
      expected_ += message.text;
    }
    lane_.send(std::move(message));
  }
  void receive_at_peer(size_t reads) {
    std::array<char, 4096> bytes;
    for (size_t i = 0; i < reads; ++i) {
      const ssize_t got = ::recv(peer_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (got <= 0) return;
      arrived_text_.append(bytes.data(), static_cast<size_t>(got));
      arrived_ = arrived_text_.size();
      FUZZ_CHECK(arrived_ <= expected_.size());
    }
  }
  void rarely(FuzzInput& input) {
    switch (input.below(8)) {
      case 0:
        return peer_.reset();
      case 1:
        return release();
      case 2:
        return lane_.lose(&receiver_);
      case 3:  // as while the transport closes: what arrives is discarded
        end_if(lane_.read_some(nullptr));
        return lane_.lose(nullptr);
      default:
        return lane_.write_early();
    }
  }
  // After this call the lane must use no payload memory, so that all of it is freed. What the peer
  // receives from now on is not checked, because messages have been dropped.
  void release() {
    lane_.release_payloads([](int, const HeaderBytes&) { return true; });
    receiver_.drop_payload();
    payloads_.clear();
    while (is_live() && lane_.has_work()) {
      bool would_block = false;
      end_if(lane_.write_some(nullptr, &would_block));
      if (would_block) break;
    }
    end_if(lane_.read_some(nullptr));
    lane_.lose(nullptr);
    peer_.reset();
  }
  void end_if(const Lane::Loss& loss) {
    if (!loss) return;
    FUZZ_CHECK(!loss->empty());
    lane_.lose(&receiver_);
    receiver_.drop_payload();
  }

  Receiver receiver_;
  Lane lane_;
  UniqueFd peer_;
  std::string unsent_;
  size_t num_messages_ = 0;
  uint64_t num_sent_ = 0;
  std::deque<std::vector<uint8_t>> payloads_;
  std::string expected_;
  std::string arrived_text_;
  size_t arrived_ = 0;
};

FUZZ_TARGET(lane) {
  LaneRun run;
  for (int step = 0; step < 64 && input.left() > 0 && run.is_live(); ++step) run.step(input);
  run.finish();
}

}  // namespace
}  // namespace smdist::fuzzing
