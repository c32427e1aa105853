// SPDX-License-Identifier: Apache-2.0
// Schedule of the connections that a rank opens: which one next, and whether again.
//
// A dial is one attempt to connect a link and to prove that both sides belong to the job. A dial
// that ends before this proof says nothing about the peer: on a busy machine or in a crowded
// network, connections are delayed, reset and closed. So the link is dialled again, with growing
// pauses, until the time limit.
//
// A refused connection says more, because every rank listens before its address is published, and
// until it ends. Linux refuses a connection (TCP RST in reply to SYN) only if no socket listens at
// the port: if the queue of a listener is full, it drops the packet, and the dialling kernel sends
// it again. But a firewall or a proxy can refuse a connection, too, so the peer counts as ended
// only after kRefusalsOfEndedPeer refusals in a row, which take less than a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>

namespace smdist {

// On busy processors dials wait for each other: 64 under way on each of 256 ranks that shared two
// processors took longer than one dial's time, and most of them had to begin again.
constexpr size_t kMaxDialsUnderWay = 16;
constexpr int kRefusalsOfEndedPeer = 10;
constexpr int kRefusalsOfCrashedPeer = 3;  // after the end of a connection
constexpr std::chrono::milliseconds kPauseAfterRefusal{80};

// Stores the links that have to be dialled. A link is dialled by its owner, which reports the end
// of each dial. Lanes 0 are dialled first, because a job can begin without its additional lanes.
//
// Thread safety: none.
class DialSchedule final {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Next : uint8_t {
    kAgain,    // the link will be dialled again
    kEnded,    // no process listens at the peer's address
    kTooLate,  // the time limit has passed
  };

  // num_peers: a link below this number is a lane 0. limit: time limit for each link, from its
  // first dial. seed: start of the random numbers that vary the pauses.
  DialSchedule(int num_peers, Clock::duration limit, uint32_t seed)
      : num_peers_(num_peers), limit_(limit), random_(seed + 1) {}

  // Add a link, which is due at once; does nothing if it is there already. refusals: number of
  // refusals in a row after which the peer counts as ended.
  void add(int link, Clock::time_point now, int refusals = kRefusalsOfEndedPeer);
  // Return the next link that is due, whose dial is under way from now on; none if no link is due,
  // or if the maximum number of dials is under way.
  std::optional<int> next(Clock::time_point now);
  // Return the time at which the dial of a link that is under way has to be given up.
  Clock::time_point deadline(int link, Clock::time_point now) const;
  // Record that the dial of a link has ended before the proof. Unless the result is kAgain, the
  // link is removed.
  Next ended(int link, bool is_refused, Clock::time_point now);
  // Record that the dial of a link could not begin, because this process lacks something.
  void postpone(int link, Clock::time_point now);
  // Remove a link, because it is connected, lost, or not wanted any more.
  void remove(int link);
  void clear();

  bool is_empty() const { return dials_.empty(); }
  // Return the time at which next() may return another link.
  Clock::time_point next_due() const;
  // Return how often the link has been dialled in vain.
  int failures(int link) const;

 private:
  struct Dial {
    Clock::time_point end;  // time limit, set by the first dial
    Clock::time_point due;
    int failures = 0;
    int refusals = 0;  // refusals in a row
    int max_refusals = kRefusalsOfEndedPeer;
    bool is_under_way = false;
  };
  using Waiting = std::set<std::pair<Clock::time_point, int>>;

  Waiting& waiting(int link) { return link < num_peers_ ? first_lanes_ : extra_lanes_; }
  void wait(int link, Dial& dial, Clock::time_point due);
  void stop(int link, Dial& dial);
  Clock::duration pause_after(const Dial& dial);

  const int num_peers_;
  const Clock::duration limit_;
  std::minstd_rand random_;
  std::map<int, Dial> dials_;  // by link
  Waiting first_lanes_;
  Waiting extra_lanes_;
  size_t num_under_way_ = 0;
};

}  // namespace smdist
