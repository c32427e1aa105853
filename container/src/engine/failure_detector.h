// SPDX-License-Identifier: Apache-2.0
// Finds out that a peer is gone or that an operation takes too long.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/pending_operation.h"
#include "engine/rank_names.h"
#include "messaging/fault.h"
#include "messaging/operation_id.h"

namespace smdist {

// Knows which peers are connected, which are gone and why, and when each operation must be over.
// This class only judges: it returns a Fault, and its owner decides what follows from that.
//
// A peer that left in order has a grace period, in which no operation fails because of it: the
// peer may be ending with an error of its own, and whoever watches the processes should see that
// error first.
//
// Thread safety: none.
class FailureDetector final {
 public:
  FailureDetector(const RankNames& names, int num_ranks)
      : names_(names), peers_(static_cast<size_t>(num_ranks)) {}

  void on_connected(int rank) { peer(rank).is_connected = true; }
  void on_leave(int rank) { peer(rank).has_left = true; }
  void on_peer_lost(int rank, const std::string& reason);  // reason: see protocol_error()

  bool is_connected(int rank) const { return peer(rank).is_connected; }
  bool is_lost(int rank) const { return !peer(rank).lost_because.empty(); }

  // Start and stop to watch the deadline of an operation.
  void watch(const Submission& submission);
  void unwatch(const Submission& submission);

  // An operation whose deadline is over, if there is one.
  std::optional<OperationId> late() const;

  // Move the deadline of a late operation once, if all members that it waits for have posted it.
  // Such a member waits for another rank itself, which it can name and this rank cannot: its
  // fault is the better one, if it comes soon. Returns whether the deadline was moved.
  bool extend(PendingOperation& late);

  // The next time at which check_deadlines() of the engine has something to do, at most `latest`.
  Clock::time_point next_deadline(Clock::time_point latest) const;

  bool has_grace_periods() const { return !grace_periods_.empty(); }
  // Return whether a grace period has ended since the last call: then check all operations.
  bool end_grace_period();

  // The fault if the operation needs a member that is gone.
  std::optional<Fault> check(const PendingOperation& pending) const;
  // The fault if a receive without a matching send is late, or waits for a peer that is gone.
  std::optional<Fault> check(const std::list<Submission>& unmatched_receives) const;
  // The fault of an operation that is late.
  Fault fault_of_late(const PendingOperation& late) const;

  // The engine has failed: nothing has a deadline any more.
  void clear();

 private:
  struct PeerStatus {
    bool is_connected = false;
    bool has_left = false;     // it said goodbye
    std::string lost_because;  // empty: it is not lost
    Clock::time_point grace_until;

    FaultKind kind_of_loss() const { return has_left ? FaultKind::kLeft : FaultKind::kLost; }
  };

  PeerStatus& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  const PeerStatus& peer(int rank) const { return peers_[static_cast<size_t>(rank)]; }
  bool is_gone(int rank) const;
  std::optional<Fault> check_unmatched(const Submission& receive) const;

  const RankNames& names_;
  std::vector<PeerStatus> peers_;
  std::set<std::pair<Clock::time_point, OperationId>> deadlines_;
  std::set<Clock::time_point> grace_periods_;  // when each ends
};

}  // namespace smdist
