// SPDX-License-Identifier: Apache-2.0
// Detection of lost peers and of operations that exceed their timeout.
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

// Stores which peers are connected, which are lost and why, and the deadline of each operation. It
// only detects faults and returns them; its owner ends the operations.
//
// After a peer has called shutdown(), operations that need it do not fail during a grace period:
// the peer may end with an error of its own, which the launcher should report first.
//
// Thread safety: none.
class FailureDetector final {
 public:
  FailureDetector(const RankNames& names, int num_ranks)
      : names_(names), peers_(static_cast<size_t>(num_ranks)) {}

  void on_connected(int rank) { peer(rank).is_connected = peer(rank).was_connected = true; }
  void on_leave(int rank) { peer(rank).has_left = true; }
  // reason: the rest of a sentence that begins with the peer's name.
  void on_peer_lost(int rank, const std::string& reason);

  bool is_connected(int rank) const { return peer(rank).is_connected; }
  bool has_left(int rank) const { return peer(rank).has_left; }
  bool is_lost(int rank) const { return !peer(rank).lost_because.empty(); }

  // Start, and stop, watching the deadline of an operation.
  void watch(const Submission& submission);
  void unwatch(const Submission& submission);

  // Return an operation whose deadline has passed, if there is one.
  std::optional<OperationId> late(Clock::time_point now) const;

  // Extend the deadline of a late operation once, if all members for which it waits have posted it.
  // Such a member itself waits for another rank and can name that rank, which this rank does not
  // know, so its fault is more useful if it arrives soon. Returns whether the deadline was
  // extended.
  bool extend(PendingOperation& late);

  // Return the next time at which ProgressEngine::check_deadlines() has something to do, at most
  // `latest`.
  Clock::time_point next_deadline(Clock::time_point latest) const;

  bool has_grace_periods() const { return !grace_periods_.empty(); }
  // Return whether a grace period has ended since the last call. If so, check all operations.
  bool end_grace_period();

  // Return the fault if the operation needs a member that is lost.
  std::optional<Fault> check(const PendingOperation& pending) const;
  // Return the fault if a receive without a matching send is late, or waits for a peer that is
  // lost.
  std::optional<Fault> check(const std::list<Submission>& unmatched_receives) const;

  // Remove all deadlines, because the engine has failed.
  void clear();

 private:
  struct PeerStatus {
    bool is_connected = false;
    bool was_connected = false;     // now or before
    bool has_left = false;          // the peer has sent a LEAVE frame
    std::string lost_because;       // rest of a sentence that begins with its name; empty: not lost
    Clock::time_point grace_until;  // end of the grace period

    FaultKind kind_of_loss() const { return has_left ? FaultKind::kLeft : FaultKind::kLost; }
  };

  PeerStatus& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  const PeerStatus& peer(int rank) const { return peers_[static_cast<size_t>(rank)]; }
  bool is_gone(int rank) const;
  std::optional<Fault> check_unmatched(const Submission& receive) const;

  const RankNames& names_;
  std::vector<PeerStatus> peers_;
  std::set<std::pair<Clock::time_point, OperationId>> deadlines_;
  std::set<Clock::time_point> grace_periods_;  // end of each grace period
};

}  // namespace smdist
