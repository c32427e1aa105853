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
// to send or expects one; the lower rank waits for the connection. A dial that ends before the
// other side has proved anything is repeated: see DialSchedule. A lower rank that has waited for
// long connects to the higher rank's listener, only to check whether it is alive. A rank accepts
// connections from everybody, but strangers have few places: see AcceptLimits.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "smdist/errors.h"
#include "smdist/options.h"
#include "smdist/transport.h"
#include "transport/accept_limits.h"
#include "transport/auth_handshake.h"
#include "transport/dial_schedule.h"
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
  void tune(const Tuning& tuning, bool is_last) override;
  uint32_t num_lanes(int peer) override;
  void flush_peer(int peer) override {
    may_await_answers_ = true;
    lane(peer).write_early();
    if (lane(peer).has_references()) referring_.insert(peer);
  }
  void connect(int peer) override;
  Span own_arena() override { return host_peers_.arena(); }
  std::shared_ptr<const void> arena_owner() override { return host_peers_.arena_owner(); }
  bool is_read_by(int peer) override {
    return lane(peer).is_live() && lane(peer).uses_shared_memory();
  }
  Span arena_of(int peer) override { return host_peers_.arena_of(peer); }
  void signal(int peer) override { lane(peer).signal(); }
  void enable_signals(int peer, bool is_wanted) override {
    host_peers_.ring(peer).enable_signals(is_wanted);
  }
  void release_payloads(const HeaderFilter& is_chosen) override;
  void detach_payloads(const Span& memory) override;
  void poll(std::chrono::milliseconds timeout) override;
  void await(std::chrono::milliseconds timeout, SpinPolicy& policy) override;
  void await_before_poll(std::chrono::milliseconds timeout, SpinPolicy& policy) override;
  std::chrono::milliseconds max_await(std::chrono::milliseconds timeout) const override;
  bool is_quiet() const override;
  void wake() override;
  void clear_wake() override;
  void close_in_child() noexcept override;
  void close(std::chrono::milliseconds limit) override;

 private:
  using Clock = std::chrono::steady_clock;
  // A connection that is not authenticated yet.
  struct Handshake {
    AuthHandshake auth;
    Clock::time_point deadline;
    bool is_check = false;  // only checks whether the peer listens
    std::string source;     // address of the dialler; empty on its side
    int proven_link = -1;   // link of an accepted connection whose dialler is authenticated
  };
  using Handshakes = std::map<uint64_t, Handshake>;
  // A higher rank that should dial this one.
  struct AwaitedPeer {
    Clock::time_point next_check;  // time of the next liveness check
    int refusals = 0;              // refused liveness checks in a row
  };

  // A TCP lane that waits for another connection.
  struct Interruption {
    Clock::time_point since;  // end of the connection, or of the last answer of the peer before it
    std::string reason;       // why its connection has ended
    bool is_heard = false;    // the peer's kernel has answered since then
  };

  // Return a lane; make it if it does not exist.
  Lane& lane(int link);
  // Return a lane; null if it does not exist.
  const Lane* find_lane(int link) const;
  bool is_live(int link) const {
    const Lane* const found = find_lane(link);
    return found != nullptr && found->is_live();
  }
  int peer_of(int link) const { return link % options_.size; }
  int link_of(int peer, uint32_t number) const {
    return static_cast<int>(number) * options_.size + peer;
  }
  uint32_t number_of(int link) const { return static_cast<uint32_t>(link / options_.size); }
  int num_links() const { return static_cast<int>(lanes_.size()); }
  bool dials(int peer) const { return options_.rank > peer; }
  // Return the number of lanes to each peer that this rank uses now.
  uint32_t used_lanes() const { return std::min(tuning_.lanes, lanes_that_fit_); }

  void watch(int fd, uint32_t events, uint64_t what, bool is_new);
  void unwatch(int fd);
  bool should_spin(SpinPolicy& policy) const;
  bool waits_for_network() const;
  bool has_events(std::chrono::milliseconds timeout) const;
  bool fetch_events(std::chrono::milliseconds timeout);
  template <typename Look>
  void await_by(const Look& look, std::chrono::milliseconds timeout, SpinPolicy& policy);
  template <typename Look>
  bool spin(const Look& look, SpinPolicy& policy) const;
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

  // Lanes that continue over another connection
  void end_link(int link, const std::string& reason);
  void interrupt(int link, const std::string& reason, Clock::time_point since);
  bool is_interrupted(int link) const { return interruptions_.count(link) > 0; }
  void heard_from(int peer);
  std::optional<std::string> end_of(int peer) const;
  bool may_continue(int link, const Hello& hello);
  void continue_lane(int link, UniqueFd fd, const AuthHandshake& auth, const LaneKeys& keys);
  void end_interruption(int link);
  std::string loss_of(const Interruption& interruption) const;
  void log_resumption(int peer, const Interruption& ended);
  void check_interruptions(Clock::time_point now);
  void check_silent_links(Clock::time_point now);
  void probe_idle_links(int silent);
  Clock::time_point last_answer(int peer) const;
  void lose_ranks_of_ended_hosts();
  void probe_lanes(const std::string& host);
  void drop(int link);

  // All connections
  void ensure_lanes(uint32_t lanes);
  void count_files();
  void log_fewer_lanes_that_fit();
  void open_arena();
  size_t arriving_bytes_per_lane() const;
  uint64_t add_handshake(AuthHandshake auth, uint32_t events, Clock::time_point deadline,
                         bool is_check);
  void advance(uint64_t number);
  void attach_lane(Handshakes::iterator handshake);
  void drop_extra_lanes(int peer);
  void fail_handshake(Handshakes::iterator handshake);
  Handshakes::iterator end_handshake(Handshakes::iterator handshake);
  void check_times();
  void end_late_handshakes(Clock::time_point now);
  void check_failing_peers(Clock::time_point now);
  void wake_at(Clock::time_point when) { next_check_ = std::min(next_check_, when); }
  bool free_a_file();
  void report_out_of_files(const SystemError& error);
  bool has_live_lanes() const;
  void log(const std::string& line) const;

  // Connections that this rank opens
  void connect_link(int link);
  void connect_more_lanes(int peer);
  void start_dials();
  void dial(int link);
  UniqueFd begin_dialling(int link);
  void dial_failed(int link, AuthHandshake::Failure failure, const std::string& fault);
  void give_up(int link, const std::string& reason);
  void log_slow_dial(int link, const std::string& fault);
  Clock::duration liveness_interval() const;
  void check_awaited_peers(Clock::time_point now);
  void check_liveness(int peer);
  void liveness_checked(Handshakes::iterator handshake);

  // Connections that others open
  void accept_all();
  void accept_from_listener(int listener);
  void place(uint64_t number);
  void watch_listeners(uint32_t events, bool is_new);
  void pause_listening();
  void resume_listening();
  AuthHandshake::Admission admit(const Hello& hello);
  std::string rejection_of(const Hello& hello);
  void on_proven(Handshakes::iterator handshake);
  bool may_attach(int link, int fd);
  void log_rejection(const std::string& line);

  // Constant after construction, or after start().
  const Options& options_;
  const Credentials credentials_;
  std::vector<Endpoint> peers_;
  Endpoint endpoint_;
  Sink* sink_ = nullptr;

  Tuning tuning_;
  uint32_t lanes_that_may_come_;  // peers may open this many lanes
  uint32_t lanes_that_fit_;       // at most, with the limit of open files
  UniqueFd epoll_;
  UniqueFd wake_;                         // any thread may write it
  std::array<epoll_event, 64> events_{};  // events that take_events() handles next
  size_t num_events_ = 0;                 // number of them; 0: it asks the system
  UniqueFd listener_;
  UniqueFd local_listener_;  // open if there is an arena
  SharedMemoryPeers host_peers_;
  bool may_await_answers_ = false;  // a TCP connection may wait for an answer of the other host
  bool is_listening_ = true;        // false: accepting is paused

  std::vector<std::unique_ptr<Lane>> lanes_;  // lanes by link; null: not used so far
  std::set<int> dirty_;                       // links that may have messages to write
  std::set<int> blocked_;                     // links that wait until they can write again
  std::map<int, std::pair<Clock::time_point, std::string>>
      failing_peers_;  // peers that lost a lane: deadline for the other lanes, and the reason
  std::map<int, Interruption> interruptions_;  // by link
  std::set<int> referring_;                    // links whose sent messages may refer to memory
  std::map<int, EngineNumber> engines_;        // number of the engine of each rank that dialled
  EngineNumber engine_number_{};               // for diallers to be recognized again
  Clock::time_point next_probe_ = Clock::now();
  Clock::time_point next_resumption_line_ = Clock::now();
  std::set<int> wanted_;  // peers to connect to, even without a message
  std::map<int, AwaitedPeer> awaited_peers_;
  DialSchedule dial_schedule_;
  AcceptLimits accept_limits_;
  Handshakes handshakes_;           // handshakes by number
  std::map<int, uint64_t> proven_;  // accepted handshakes that await the last message, by link
  uint64_t last_handshake_ = 0;
  std::optional<Clock::time_point> out_of_files_since_;
  bool is_out_of_files_reported_ = false;
  bool is_fewer_lanes_logged_ = false;
  bool is_slow_dial_logged_ = false;
  Clock::time_point next_check_ = Clock::now();
  std::atomic<bool> waits_for_network_{false};       // read by all threads in await()
  SpinPolicy spin_policy_;                           // statistics of spinning in poll()
  Clock::time_point next_listening_ = Clock::now();  // end of a pause of accepting
  int num_rejection_lines_ = 0;                      // lines logged since the last tick
  int num_unlogged_rejections_ = 0;                  // rejections without a line since then
};

}  // namespace smdist
