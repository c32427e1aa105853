// SPDX-License-Identifier: Apache-2.0
#include "engine/failure_detector.h"

#include <algorithm>

#include "engine/fault_messages.h"

namespace smdist {
namespace {

constexpr std::chrono::milliseconds kGracePeriod{1000};
constexpr std::chrono::milliseconds kExtension{500};

}  // namespace

void FailureDetector::on_peer_lost(int rank, const std::string& reason) {
  PeerStatus& lost = peer(rank);
  lost.is_connected = false;
  lost.lost_because = reason;
  if (!lost.has_left) return;
  lost.lost_because = "has left the group";
  lost.grace_until = Clock::now() + kGracePeriod;
  grace_periods_.insert(lost.grace_until);
}

void FailureDetector::watch(const Submission& submission) {
  deadlines_.insert({submission.deadline, submission.id});
}

void FailureDetector::unwatch(const Submission& submission) {
  deadlines_.erase({submission.deadline, submission.id});
}

std::optional<OperationId> FailureDetector::late(Clock::time_point now) const {
  if (deadlines_.empty() || deadlines_.begin()->first > now) return std::nullopt;
  return deadlines_.begin()->second;
}

bool FailureDetector::extend(PendingOperation& late) {
  Submission& submission = late.submission();
  if (submission.is_extended || !late.is_blocked_by_ready_members()) return false;
  unwatch(submission);
  submission.is_extended = true;
  submission.deadline = Clock::now() + kExtension;
  watch(submission);
  return true;
}

Clock::time_point FailureDetector::next_deadline(Clock::time_point latest) const {
  if (!deadlines_.empty()) latest = std::min(latest, deadlines_.begin()->first);
  if (!grace_periods_.empty()) latest = std::min(latest, *grace_periods_.begin());
  return latest;
}

bool FailureDetector::end_grace_period() {
  if (grace_periods_.empty() || *grace_periods_.begin() > Clock::now()) return false;
  grace_periods_.erase(grace_periods_.begin());
  return true;
}

bool FailureDetector::is_gone(int rank) const {
  return is_lost(rank) && peer(rank).grace_until <= Clock::now();
}

std::optional<Fault> FailureDetector::check(const PendingOperation& pending) const {
  const Submission& submission = pending.submission();
  for (const int member : pending.partners()) {
    const int rank = submission.rank_of(member);
    if (!is_gone(rank) || !pending.needs(member)) continue;
    if (!peer(rank).was_connected && !peer(rank).has_left)
      return never_connected(names_, submission, rank, peer(rank).lost_because);
    return peer_lost(names_, submission, peer(rank).kind_of_loss(), rank, peer(rank).lost_because,
                     !pending.awaits_data_from(member));
  }
  return std::nullopt;
}

std::optional<Fault> FailureDetector::check(const std::list<Submission>& unmatched) const {
  for (const Submission& receive : unmatched) {
    if (std::optional<Fault> fault = check_unmatched(receive)) return fault;
  }
  return std::nullopt;
}

// Returns the fault of a receive without a matching send. A receive from any rank fails as soon as
// one peer has died, because that peer may have been the sender. If peers have called shutdown(),
// it fails when the last of them has done so.
std::optional<Fault> FailureDetector::check_unmatched(const Submission& receive) const {
  if (receive.deadline <= Clock::now()) return receive_timed_out(names_, receive);
  const int named = receive.operation.peer;
  int num_gone = 0;
  for (int member = 0; member < receive.group->size(); ++member) {
    const int rank = receive.rank_of(member);
    const bool may_send = named == kAnyRank || named == member;
    if (rank == names_.own_rank() || !may_send || !is_gone(rank)) continue;
    const bool is_last = named != kAnyRank || ++num_gone == receive.group->size() - 1;
    if (!is_last && peer(rank).has_left) continue;
    if (!peer(rank).was_connected && !peer(rank).has_left)
      return never_connected(names_, receive, rank, peer(rank).lost_because);
    return sender_lost(names_, receive, peer(rank).kind_of_loss(), rank, peer(rank).lost_because);
  }
  return std::nullopt;
}

void FailureDetector::clear() {
  deadlines_.clear();
  grace_periods_.clear();
}

}  // namespace smdist
