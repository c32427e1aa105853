// SPDX-License-Identifier: Apache-2.0
// Fuzz target of TcpTransport as a whole: rank 1 of 4 accepts connections of strangers, of members
// of the job, and of members that are hostile: they greet in pieces, take each other's names and
// lanes, continue lanes at any byte, send frames and acknowledgements, and hang up at any time.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/little_endian.h"
#include "fuzz_target.h"
#include "pattern.h"
#include "smdist/errors.h"
#include "transport/auth_messages.h"
#include "transport/lane_acknowledgement.h"
#include "transport/socket.h"
#include "transport/tcp_transport.h"

namespace smdist::fuzzing {
namespace {

constexpr int kRank = 1;
constexpr int kRanks = 4;  // ranks 2 and 3 connect to this one
constexpr uint32_t kLanes = 2;
constexpr size_t kMostConnections = 6;
constexpr size_t kLengthAt = 40;  // in a header, after what an acknowledgement uses

// Closes a connection with a reset, so that none of thousands stays in the kernel for a minute.
void reset(UniqueFd& fd) {
  if (!fd.is_open()) return;
  const linger at_once{1, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  fd.reset();
}

// Listener of ranks 2 and 3, which rank 1 connects to when it checks whether they are alive.
class HigherRanks final {
 public:
  HigherRanks() : listener_(listen_on("127.0.0.1")), endpoint_(local_endpoint(listener_.get())) {}
  const Endpoint& endpoint() const { return endpoint_; }
  void hang_up() {
    for (;;) {
      UniqueFd fd = accept_from(listener_.get());
      if (!fd.is_open()) return;
      reset(fd);
    }
  }

 private:
  UniqueFd listener_;
  Endpoint endpoint_;
};

HigherRanks& higher_ranks() {
  static HigherRanks all;
  return all;
}

Options options_of(FuzzInput& input) {
  Options options;
  options.rank = kRank;
  options.size = kRanks;
  options.hosts = {0, 1, 2, 3};
  options.secret = "a secret of the fuzz targets";
  if (input.below(8) == 7) options.protection.integrity = Integrity::kCrc32c;
  options.max_lanes = kLanes;
  options.tuning.lanes = 1 + static_cast<uint32_t>(input.below(kLanes));
  options.silence = std::chrono::hours(1);
  options.log = [](const std::string& line) { FUZZ_CHECK(!line.empty()); };
  return options;
}

// Receives messages of the two ranks, and checks who may have sent them.
class Receiver final : public Sink {
 public:
  void on_connected(int peer) override {
    FUZZ_CHECK(is_proven(peer) && !is_lost_[at(peer)] && !is_connected_[at(peer)]);
    is_connected_[at(peer)] = true;
  }
  Span on_header(int peer, const HeaderBytes& header) override {
    FUZZ_CHECK(is_proven(peer) && !is_lost_[at(peer)]);
    if (header[0] == 255) throw PeerError("is refused");
    const size_t bytes = get<uint16_t>(&header[kLengthAt]) % kMostPayload;
    if (header[0] == 254) return {nullptr, bytes};
    places_.push_back(std::make_unique<uint8_t[]>(bytes));
    return {places_.back().get(), bytes};
  }
  void on_message(int peer, const HeaderBytes& header) override {
    FUZZ_CHECK(is_proven(peer) && !is_lost_[at(peer)]);
    if (header[0] == 253) throw PeerError("is refused");
  }
  void on_sent(int peer, uint64_t token) override {
    FUZZ_CHECK(token == ++num_reported_[at(peer)]);
  }
  bool may_reconnect(int) const override { return reconnects; }
  void on_peer_lost(int peer, const std::string& reason) override {
    FUZZ_CHECK(!reason.empty() && !is_lost_[at(peer)]);
    is_lost_[at(peer)] = true;
  }

  bool is_lost(int peer) const { return is_lost_[at(peer)]; }
  void prove(uint32_t rank) {
    if (rank < kRanks) is_proven_[rank] = true;
  }
  bool reconnects = true;

 private:
  static size_t at(int peer) {
    FUZZ_CHECK(peer == 2 || peer == 3);
    return static_cast<size_t>(peer);
  }
  bool is_proven(int peer) const { return is_proven_[at(peer)]; }

  std::array<bool, kRanks> is_proven_{};  // somebody who knows the secret has said this name
  std::array<bool, kRanks> is_connected_{};
  std::array<bool, kRanks> is_lost_{};
  std::array<uint64_t, kRanks> num_reported_{};
  std::vector<std::unique_ptr<uint8_t[]>> places_;
};

class TransportRun final {
 public:
  explicit TransportRun(FuzzInput& input)
      : options_(options_of(input)),
        credentials_{options_.secret, options_.session, options_.protection},
        transport_(options_) {
    receiver_.reconnects = input.below(4) != 0;
    const Endpoint other = higher_ranks().endpoint();
    transport_.start({other, transport_.endpoint(), other, other}, &receiver_);
  }

  void step(FuzzInput& input) {
    const size_t command = input.below(16);
    if (connections_.empty() || command == 0) return connect();
    Connection& connection = connections_[input.below(connections_.size())];
    if (command < 4) {
      greet(input, connection);
    } else if (command < 5) {
      say(connection, connection.unsent);
    } else if (command < 7) {
      say(connection, std::string(1, input.below(8) == 7 ? '\0' : '\1'));
    } else if (command < 9) {
      say(connection, frame(input));
    } else if (command < 10) {
      const std::vector<uint8_t> bytes = input.bytes(1 + input.below(64));
      say(connection, {bytes.begin(), bytes.end()});
    } else if (command < 11) {
      hang_up(input, connection);
    } else if (command < 14) {
      send(input);
    } else if (command < 15) {
      hear(connection);
    } else {
      rarely(input);
    }
    transport_.poll(std::chrono::milliseconds(0));
  }

  void finish() {
    transport_.close(std::chrono::milliseconds(0));
    for (Connection& each : connections_) reset(each.fd);
    higher_ranks().hang_up();
  }

 private:
  // A connection that a stranger or a member of the job has opened.
  struct Connection {
    UniqueFd fd;
    std::string unsent;  // rest of the last greeting
  };

  void connect() {
    if (connections_.size() == kMostConnections) {
      reset(connections_.front().fd);
      connections_.erase(connections_.begin());
    }
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const Endpoint endpoint = transport_.endpoint();
    const Address address(endpoint.host, endpoint.port);
    // Connections that have ended keep their ports for a minute, also those of other programs.
    while (::connect(fd.get(), address.raw(), address.bytes) != 0) {
      FUZZ_CHECK(errno == EADDRNOTAVAIL || errno == EINTR);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    connections_.push_back({std::move(fd), {}});
    transport_.poll(std::chrono::milliseconds(0));
  }

  static void say(Connection& connection, std::string bytes) {
    (void)!::send(connection.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    connection.unsent.clear();
  }

  // Reads the number that the transport has chosen, and sends a greeting for it, perhaps changed,
  // and perhaps its first bytes only.
  void greet(FuzzInput& input, Connection& connection) {
    Nonce nonce{};
    (void)!::recv(connection.fd.get(), nonce.data(), nonce.size(), MSG_DONTWAIT);
    const Hello hello = hello_of(input);
    HelloBytes bytes = encode(credentials_, hello, nonce);
    receiver_.prove(hello.rank);
    if (input.below(16) == 15) bytes[input.below(bytes.size())] ^= input.byte();
    const size_t cut = input.below(4) == 3 ? input.byte() % bytes.size() : bytes.size();
    say(connection, {bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(cut)});
    connection.unsent.assign(bytes.begin() + static_cast<ptrdiff_t>(cut), bytes.end());
  }

  static Hello hello_of(FuzzInput& input) {
    Hello hello;
    const size_t name = input.below(16);
    hello.rank = name < 14 ? 2 + name % 2 : input.number<uint32_t>();
    hello.wanted = input.below(16) < 15 ? kRank : input.number<uint32_t>();
    hello.lane = static_cast<uint32_t>(input.below(8) / 3);
    if (hello.lane == 2 && input.flag()) hello.lane = input.number<uint32_t>();
    hello.nonce.fill(input.byte());
    const size_t received = input.below(8);
    if (received > 4) hello.received = received == 5 ? input.number<uint64_t>() : input.byte() * 48;
    hello.engine.fill(static_cast<uint8_t>(input.below(8) == 7));
    return hello;
  }

  // Returns a frame, or an acknowledgement.
  static std::string frame(FuzzInput& input) {
    HeaderBytes header{};
    const size_t kind = input.below(8);
    if (kind == 7) header = acknowledgement_of(input.number<uint32_t>());
    if (kind == 6) input.fill(header);
    if (kind < 6) header[0] = input.byte();
    size_t bytes = kind < 6 ? input.number<uint16_t>() % kMostPayload : 0;
    if (kind < 6) put<uint16_t>(&header[kLengthAt], static_cast<uint16_t>(bytes));
    if (input.below(4) == 3) bytes = bytes * input.byte() / 256;
    return std::string(header.begin(), header.end()) + std::string(bytes, 'x');
  }

  void hang_up(FuzzInput& input, Connection& connection) {
    if (input.below(8) == 7) {
      ::shutdown(connection.fd.get(), SHUT_WR);
      return;
    }
    reset(connection.fd);
    connections_.erase(connections_.begin() + (&connection - connections_.data()));
  }

  void send(FuzzInput& input) {
    const int peer = 2 + static_cast<int>(input.below(2));
    if (receiver_.is_lost(peer)) return;
    Message message;
    message.text.assign(input.number<uint16_t>() % kMostPayload, 'x');
    message.lane = static_cast<uint32_t>(input.below(transport_.num_lanes(peer)));
    transport_.send(peer, std::move(message));
  }

  static void hear(Connection& connection) {
    std::array<char, 4096> bytes;
    while (::recv(connection.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) continue;
  }

  void rarely(FuzzInput& input) {
    Tuning tuning = options_.tuning;
    switch (input.below(4)) {
      case 0:
        return transport_.release_payloads([](int, const HeaderBytes&) { return true; });
      case 1:
        tuning.lanes = 1 + static_cast<uint32_t>(input.below(kLanes));
        return transport_.tune(tuning, input.flag());
      default:
        return higher_ranks().hang_up();
    }
  }

  const Options options_;
  const Credentials credentials_;
  Receiver receiver_;
  TcpTransport transport_;
  std::vector<Connection> connections_;
};

FUZZ_TARGET(tcp_transport) {
  TransportRun run(input);
  for (int step = 0; step < 64 && input.left() > 0; ++step) run.step(input);
  run.finish();
}

}  // namespace
}  // namespace smdist::fuzzing
