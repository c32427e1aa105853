// SPDX-License-Identifier: Apache-2.0
// Messages over TCP or, between ranks of one host, through rings in memory that they hand to
// each other over Unix sockets. Where there is no such socket, TCP it is.
//
// Lanes. Two ranks on different hosts may have several connections. All but payloads
// take lane 0, which is made first; a peer is lost with the last of its lanes, since each
// may hold something that left before its end. "Link" is the number of a lane of a peer.
//
// Who dials whom. Of two ranks the higher one dials, when it first has something
// to send or to hear; the lower one waits to be dialled. Every rank listens before anyone
// learns its address, so a refused connection means that the process is gone. A
// lower rank that waits for long probes the higher one's listener to learn that.
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
#include "transport/greeting.h"
#include "transport/lane.h"
#include "transport/neighbours.h"

namespace smdist {

// What an epoll event is about: two bits of kind, the rest a number.
enum class Subject : uint64_t { kWake = 0, kListener = 1, kLane = 2, kGreeting = 3 };

inline uint64_t cookie(Subject subject, uint64_t number) {
  return number << 2 | static_cast<uint64_t>(subject);
}

constexpr std::chrono::milliseconds kTick{250};  // how exactly slow things are timed

// Thread safety: as Transport.
class TcpTransport final : public Transport {
 public:
  // Opens the listener. `options` must outlive the transport. Throws UsageError if
  // the bind address is not a numeric address, SystemError if it cannot be bound.
  explicit TcpTransport(const Options& options);

  Endpoint endpoint() const override { return endpoint_; }
  void start(const std::vector<Endpoint>& peers, Sink* sink) override;
  void send(int peer, Message message) override;
  void tune(const Tuning& tuning) override;
  uint32_t num_lanes(int peer) override;
  void hasten(int peer) override { lane(peer).write_early(); }
  void connect(int peer) override;
  Span own_arena() override { return neighbours_.arena(); }
  bool is_read_by(int peer) override { return lane(peer).is_live() && lane(peer).is_local(); }
  Span arena_of(int peer) override { return neighbours_.arena_of(peer); }
  void signal(int peer) override { lane(peer).signal(); }
  void expect(int peer, bool is_wanted) override {
    neighbours_.ring(peer).expect_signals(is_wanted);
  }
  void release_payloads() override;
  void poll(std::chrono::milliseconds timeout) override;
  void await(std::chrono::milliseconds timeout, Looking& looking) override;
  std::chrono::milliseconds patience(std::chrono::milliseconds timeout) const override;
  bool is_quiet() const override;
  void wake() override;
  void clear_wake() override;
  void close_in_child() noexcept override;
  void close(std::chrono::milliseconds limit) override;

 private:
  using Clock = std::chrono::steady_clock;
  using Greetings = std::map<uint64_t, Greeting>;

  Lane& lane(int link) { return lanes_[static_cast<size_t>(link)]; }
  int peer_of(int link) const { return link % options_.size; }
  int link_of(int peer, uint32_t number) const {
    return static_cast<int>(number) * options_.size + peer;
  }
  bool dials(int peer) const { return options_.rank > peer; }

  void watch(int fd, uint32_t events, uint64_t what, bool is_new);
  void unwatch(int fd);
  Greetings::iterator end_greeting(Greetings::iterator greeting);
  bool is_pause_worth_it(Looking& looking) const;
  bool waits_for_wire() const;
  bool has_news(std::chrono::milliseconds timeout) const;
  bool look_for_news(Looking& looking) const;
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
  void make_room_for(uint32_t lanes);
  void open_arena();
  UniqueFd begin_dialling(int link);
  void accept_all();
  void accept_from_listener(int listener);
  void watch_listeners(uint32_t events, bool is_new);
  void listen_later();
  void listen_again();
  std::string admit(const Hello& hello);
  size_t arriving_bytes_per_lane() const;
  void advance(uint64_t number);
  void trust(Greetings::iterator greeting);
  void give_up(Greetings::iterator greeting);
  void check_times();
  bool drop_strangers(Clock::duration patience);
  void log_stranger(const std::string& line);
  void probe(int peer);
  bool has_farewells() const;
  void log(const std::string& line) const;

  // Constant after construction, or after start().
  const Options& options_;
  const Credentials credentials_;
  std::vector<Endpoint> peers_;
  Endpoint endpoint_;
  Sink* sink_ = nullptr;

  Tuning tuning_;
  UniqueFd epoll_;
  UniqueFd wake_;  // may be written from any thread
  UniqueFd listener_;
  UniqueFd local_listener_;  // open if there is an arena
  Neighbours neighbours_;
  bool is_listening_ = true;  // whether the listeners are watched

  std::deque<Lane> lanes_;                                         // by link
  std::set<int> dirty_;                                            // links that may have work
  std::set<int> blocked_;                                          // that epoll is to tell of
  std::map<int, std::pair<Clock::time_point, std::string>> torn_;  // peers that lost a lane
  std::set<int> wanted_;                      // peers to connect with, even without work
  std::map<int, Clock::time_point> awaited_;  // peers that should dial us; next probe
  Greetings greetings_;                       // by number
  std::map<uint64_t, int> probes_;            // greetings that only probe, and whom
  uint64_t last_greeting_ = 0;
  Clock::time_point next_check_ = Clock::now();
  std::atomic<bool> waits_for_wire_{false};  // told to whoever awaits
  Looking looking_;                          // of poll()
  int num_stranger_lines_ = 0;               // logged since the last check of the times
};

}  // namespace smdist
