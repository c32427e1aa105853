// SPDX-License-Identifier: Apache-2.0
// Leads all operations of one engine through their plans.
//
// The protocol. A rank that posts an operation tells every member it will
// exchange messages with, by a READY frame that describes the operation; all members, if
// they may do it in shared memory instead of by messages (sharing.cc). Data
// flow to a peer only after its READY, so that every payload has a place to go.
// READY frames that come before the local post are remembered. A short message that
// waits for nothing else rides with the READY frame; if it comes before the local post, it
// is parked, and its sender parks no more than a budget at each peer. A message whose place is
// still taken, by an earlier piece that is not summed yet, waits for a GRANT frame. Descriptors
// that differ, a peer that is needed and gone, a frame that makes no sense, a deadline: each is a
// fault, and one fault fails all operations, here and, by ABORT frames, on all ranks.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "engine/announced.h"
#include "engine/completions.h"
#include "engine/exchanges.h"
#include "engine/matching.h"
#include "engine/pending.h"
#include "memory/blocks.h"
#include "messaging/fault.h"
#include "messaging/frame.h"
#include "messaging/outbox.h"
#include "messaging/place.h"
#include "smdist/transport.h"

namespace smdist {

// What may be parked at a rank of every other one: messages that came with READY frames.
constexpr size_t kParkedBytes = 256 << 10;

// Thread safety: belongs to whoever has the lead, but for failure(), which any may call.
class Conductor final : public Sink {
 public:
  Conductor(const Options& options, Transport& transport, Completions& completions);

  void post(Submission submission);
  void forget(uint32_t group) { history_.erase(group); }
  void abort(FaultKind kind, const std::string& reason);
  void check_deadlines();
  std::chrono::milliseconds until_deadline() const;
  bool is_quiet() const;  // nothing is on its way, and nothing has its time

  // Moves sums in shared memory on, a little. Busy: more could be done at once.
  void advance();
  bool is_busy() const { return is_busy_; }

  // What ended the engine, or null.
  std::exception_ptr failure() const SMDIST_EXCLUDES(failure_mutex_) {
    MutexLock lock(failure_mutex_);
    return failure_;
  }

  // Something failed, and there are peers who may yet connect and hear of it.
  bool has_untold_peers() const;

  // Fails what is pending here and says goodbye to all peers.
  void leave();

  void on_connected(int peer) override;
  Span on_header(int peer, const HeaderBytes& header) override;
  void on_message(int peer, const HeaderBytes& header) override;
  void on_sent(int peer, uint64_t token) override;
  void on_peer_lost(int peer, const std::string& reason) override;

 private:
  enum class Presence : uint8_t { kPresent, kLeft, kDead };

  struct Peer {
    Presence presence = Presence::kPresent;
    bool is_connected = false;
    std::string lost_because;
    Clock::time_point excused_until;  // for one that left in order
    Outbox outbox;
    uint32_t chunks_in_flight = 0;
    uint32_t last_lane = 0;
    uint32_t num_leases = 0;       // of its blocks, which sums here have yet to read
    size_t num_early = 0;          // its READY frames that wait for a local post
    size_t early_bytes = 0;        // that came with them
    size_t rider_bytes = 0;        // of ours that may be parked there
    std::vector<uint8_t> control;  // the payload of a READY or an ABORT that comes in
  };
  struct InFlight {
    OperationId id;
    uint32_t step;
    bool is_last;
    bool is_chunk;  // else a frame that tells of a block
  };
  struct Past {
    uint64_t sequence;
    Descriptor descriptor;
  };

  // Frames
  void announce(Pending& pending, int member);
  std::optional<uint32_t> rider_for(Pending& pending, int member);
  void send_ready(const Pending& pending, int member, std::optional<uint32_t> rider);
  void send_grant(const Pending& pending, uint32_t receive);
  void send_text(int peer, Frame frame, std::string text, uint64_t token = 0);
  uint32_t next_lane(int peer, size_t bytes);
  void pump(int peer);
  void pump_chunk(int peer);
  void pump_block(int peer);
  void release(int peer, uint32_t block);
  Span place_data(int peer, const Frame& frame);
  Span place_control(int peer, const Frame& frame);
  void take_ready(int peer, const Frame& frame);
  void take_rider(Pending& pending, int peer, const Frame& frame);
  Rider park(int peer, const Frame& frame);
  bool take_ready_of_past(int peer, const OperationId& id, const Descriptor& theirs);
  void meet_past(int peer, const OperationId& id, const Descriptor& theirs);
  void take_data(int peer, const Frame& frame);
  void take_grant(int peer, const Frame& frame);
  void take_shared(int peer, const Frame& frame);
  void read_block(Pending& pending, int peer, const Frame& frame, const Place& place);
  void take_release(int peer, const Frame& frame);
  const uint8_t* shared_bytes(int peer, const Place& place);
  void take_abort(int peer);

  // Operations
  void connect_all(const Group& group);
  void begin(Submission submission);
  void begin_all(std::vector<Submission> submissions);
  void run(Pending& pending, const Pending::Moves& moves);
  Buffer scratch_for(const Submission& submission);
  void meet_early(const OperationId& id);
  void unpark(const OperationId& id, int peer, const Rider& rider);
  void meet(Pending& pending, int peer, const Descriptor& theirs,
            const std::optional<Meeting>& meeting);
  void finish(const OperationId& id);
  void hasten_all(const Group& group);
  void remember(const Submission& submission);
  Pending* find(const OperationId& id);
  void check_partners();
  void check_partners(const Pending& pending);
  void check_waiting();
  bool is_any_late() const;
  bool extend(Pending& late);
  void fail_late(const Pending& late);
  void check_absent();

  // Sums in shared memory
  SharedSum* begin_sum(const Submission& submission);
  SumTask task_of(const Submission& submission) const;
  void announce_sum(Pending& pending, int member);
  std::optional<Meeting> meeting_in(int peer, const Frame& frame) const;
  void meet_sum(Pending& pending, int peer, const std::optional<Meeting>& meeting);
  void replan(Pending& pending);
  Pending* find_planned(const OperationId& id);
  bool advance(Pending& pending);
  void tell(const Group& group, SharedSum::Members members);
  void expect_news();

  // Faults
  void fail(Fault fault, bool is_ours);
  void fail_all(const std::exception_ptr& error);
  void tell(const Fault& fault, bool is_ours);
  void fail_for_lost(const Pending& pending, int member);
  void fail_for_mismatch(const OperationId& id, const Descriptor& ours, int peer,
                         const Descriptor& theirs);
  void fail_for_late_receive(const Submission& receive);
  bool is_absent(int rank) const;
  std::string title_of(const Submission& submission) const;
  const std::string& name_of_rank(int rank) const;
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<size_t>(rank)]; }

  const Options& options_;
  Transport& transport_;
  Completions& completions_;

  std::vector<std::string> names_;
  std::vector<Peer> peers_;
  BufferPool pool_;
  Matching matching_;
  Announced announced_;
  std::map<OperationId, Pending> pending_;
  std::set<std::pair<Clock::time_point, OperationId>> deadlines_;
  std::set<Clock::time_point> excuses_;                     // when those of peers who left end
  std::unordered_map<uint32_t, std::deque<Past>> history_;  // by group: the last few
  std::unordered_map<uint64_t, InFlight> in_flight_;        // by token
  uint64_t last_token_ = 0;
  std::optional<Blocks> blocks_;     // of our arena, if there is one
  Exchanges exchanges_;              // of our arena
  std::vector<OperationId> shared_;  // operations that are sums there
  std::vector<bool> is_expected_;    // by peer: whose news wake us
  bool expects_any_ = false;
  bool is_busy_ = false;
  uint64_t last_serial_ = 0;
  std::exception_ptr broken_;  // set by the first fault
  Fault fault_;
  mutable Mutex failure_mutex_;
  std::exception_ptr failure_ SMDIST_GUARDED_BY(failure_mutex_);  // broken_, for other threads
};

}  // namespace smdist
