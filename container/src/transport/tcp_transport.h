// SPDX-License-Identifier: Apache-2.0
// Transport over TCP and, between ranks of one host, through ring buffers in shared memory. The
// ranks of a host send each other the descriptor of that memory over Unix sockets; without a Unix
// socket they use TCP, too.
//
// Lanes. Two ranks on different hosts may have several connections, called lanes. Lane 0 is
// connected first; the others transfer only payloads. A peer is lost when the last of its lanes has
// ended, because each lane may still contain messages that were sent before. A "link" is the number
// of a lane among the lanes of all peers.
//
// Connecting. The rank with the higher number opens the connection ("dials") when it has a message
// to send or expects one; the lower rank waits for the connection. Every rank listens before its
// address is published, so a refused connection means that the process has ended. A lower rank that
// has waited for long connects to the higher rank's listener, only to check whether it is alive.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "smdist/options.h"
#include "smdist/transport.h"
#include "transport/auth_handshake.h"
#include "transport/lane.h"
#include "transport/shared_memory_peers.h"

namespace smdist {

// Source of an epoll event. The data of the event are the number of the object, shifted by two
// bits, and this value.
enum class EventSource : uint64_t { kWake = 0, kListener = 1, kLane = 2, kHandshake = 3 };

inline uint64_t cookie(EventSource subject, uint64_t number) {
  return number << 2 | static_cast<uint64_t>(subject);
}

constexpr std::chrono::milliseconds kTick{250};  // time between checks of timeouts

// Transport of a training job, over TCP and shared memory.
//
// Thread safety: as Transport.
class TcpTransport final : public Transport {
 public:
  // Open the listener. `options` must exist as long as the transport. Throws UsageError if the bind
  // address is not numeric, SystemError if it cannot be bound.
  explicit TcpTransport(const Options& options);

  Endpoint endpoint() const override { return endpoint_; }
  void start(const std::vector<Endpoint>& peers, Sink* sink) override;
  void send(int peer, Message message) override;
  void tune(const Tuning& tuning) override;
  uint32_t num_lanes(int peer) override;
  void flush_peer(int peer) override { lane(peer).write_early(); }
  void connect(int peer) override;
  Span own_arena() override { return host_peers_.arena(); }
  bool is_read_by(int peer) override {
    return lane(peer).is_live() && lane(peer).uses_shared_memory();
  }
  Span arena_of(int peer) override { return host_peers_.arena_of(peer); }
  void signal(int peer) override { lane(peer).signal(); }
  void enable_signals(int peer, bool is_wanted) override {
    host_peers_.ring(peer).enable_signals(is_wanted);
  }
  void release_payloads() override;
  void poll(std::chrono::milliseconds timeout) override;
  void await(std::chrono::milliseconds timeout, SpinPolicy& policy) override;
  std::chrono::milliseconds max_await(std::chrono::milliseconds timeout) const override;
  bool is_quiet() const override;
  void wake() override;
  void clear_wake() override;
  void close_in_child() noexcept override;
  void close(std::chrono::milliseconds limit) override;

 private:
  using Clock = std::chrono::steady_clock;
  using Handshakes = std::map<uint64_t, AuthHandshake>;

  Lane& lane(int link) { return lanes_[static_cast<size_t>(link)]; }
  int peer_of(int link) const { return link % options_.size; }
  int link_of(int peer, uint32_t number) const {
    return static_cast<int>(number) * options_.size + peer;
  }
  bool dials(int peer) const { return options_.rank > peer; }

  void watch(int fd, uint32_t events, uint64_t what, bool is_new);
  void unwatch(int fd);
  Handshakes::iterator end_handshake(Handshakes::iterator handshake);
  bool should_spin(SpinPolicy& policy) const;
  bool waits_for_network() const;
  bool has_events(std::chrono::milliseconds timeout) const;
  bool spin(SpinPolicy& policy) const;
  bool has_timers() const;
  void take_events();
  void handle(uint64_t what, uint32_t events);
  void flush();
  void write_to(int link);
  void read_from(int link);
  void read_rings();
  void unblock(int link);
  void lose(int peer, const std::string& reason);
  void lose_link(int link, const std::string& reason);
  void drop(int link);

  void dial(int link);
  void dial_more_lanes(int peer);
  void ensure_lanes(uint32_t lanes);
  void open_arena();
  UniqueFd begin_dialling(int link);
  void accept_all();
  void accept_from_listener(int listener);
  void watch_listeners(uint32_t events, bool is_new);
  void pause_listening();
  void resume_listening();
  std::string admit(const Hello& hello);
  size_t arriving_bytes_per_lane() const;
  void advance(uint64_t number);
  void attach_lane(Handshakes::iterator handshake);
  void fail_handshake(Handshakes::iterator handshake);
  void check_times();
  bool drop_slow_handshakes(Clock::duration limit);
  void log_rejection(const std::string& line);
  void check_liveness(int peer);
  bool has_live_lanes() const;
  void log(const std::string& line) const;

  // Constant after construction, or after start().
  const Options& options_;
  const Credentials credentials_;
  std::vector<Endpoint> peers_;
  Endpoint endpoint_;
  Sink* sink_ = nullptr;

  Tuning tuning_;
  UniqueFd epoll_;
  UniqueFd wake_;  // any thread may write it
  UniqueFd listener_;
  UniqueFd local_listener_;  // open if there is an arena
  SharedMemoryPeers host_peers_;
  bool is_listening_ = true;  // false: accepting is paused

  std::deque<Lane> lanes_;  // lanes by link
  std::set<int> dirty_;     // links that may have messages to write
  std::set<int> blocked_;   // links that wait until they can write again
  std::map<int, std::pair<Clock::time_point, std::string>>
      failing_peers_;     // peers that lost a lane: deadline for the other lanes, and the reason
  std::set<int> wanted_;  // peers to connect to, even without a message
  std::map<int, Clock::time_point>
      awaiting_dial_;      // peers that should dial this rank; time of the next liveness check
  Handshakes handshakes_;  // handshakes by number
  std::map<uint64_t, int>
      liveness_checks_;  // handshakes that only check whether a peer listens, and that peer
  uint64_t last_handshake_ = 0;
  Clock::time_point next_check_ = Clock::now();
  std::atomic<bool> waits_for_network_{false};  // read by all threads in await()
  SpinPolicy spin_policy_;                      // statistics of spinning in poll()
  int num_rejection_lines_ = 0;                 // lines logged since the last check_times()
};

}  // namespace smdist
