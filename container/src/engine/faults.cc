// SPDX-License-Identifier: Apache-2.0
// How the conductor fails: once, everywhere, with a sentence.
#include <algorithm>
#include <utility>

#include "engine/conductor.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr std::chrono::milliseconds kExcuse{1000};

std::string text_of(std::chrono::milliseconds time) {
  const auto count = time.count();
  return count % 1000 == 0 ? std::to_string(count / 1000) + " s" : std::to_string(count) + " ms";
}

}  // namespace

void Conductor::abort(FaultKind kind, const std::string& reason) {
  fail({kind, options_.rank, reason}, true);
}

void Conductor::on_connected(int rank) {
  peer(rank).is_connected = true;
  // Who comes late learns at once what happened.
  Frame frame;
  frame.type = FrameType::kAbort;
  if (broken_) send_text(rank, frame, encode(fault_));
}

void Conductor::on_peer_lost(int rank, const std::string& reason) {
  Peer& lost = peer(rank);
  lost.is_connected = false;
  lost.outbox.clear();
  if (blocks_) blocks_->release_all(rank);
  if (lost.presence == Presence::kLeft) {
    lost.lost_because = "has left the group";
    lost.excused_until = Clock::now() + kExcuse;
    excuses_.insert(lost.excused_until);
  } else {
    lost.presence = Presence::kDead;
    lost.lost_because = reason;
  }
  check_partners();
}

void Conductor::check_partners() {
  for (const auto& [id, pending] : pending_) {
    check_partners(pending);
    if (broken_) return;
  }
  check_waiting();
}

bool Conductor::is_absent(int rank) const {
  const Peer& other = peer(rank);
  return !other.lost_because.empty() && other.excused_until <= Clock::now();
}

// Fails if the operation needs a member that is gone. Who left in order is
// excused for a moment: it may be ending with an error of its own, and whoever
// watches the processes shall see that one first.
void Conductor::check_partners(const Pending& pending) {
  const std::vector<int>& members = pending.submission().group->members;
  for (const int member : pending.partners()) {
    if (is_absent(members[static_cast<size_t>(member)]) && pending.needs(member)) {
      return fail_for_lost(pending, member);
    }
  }
}

void Conductor::check_absent() {
  if (excuses_.empty() || *excuses_.begin() > Clock::now()) return;
  excuses_.erase(excuses_.begin());
  check_partners();
}

// Receives whose sender is not known yet: one who died might have been it, and of
// those who left in order the last one was.
void Conductor::check_waiting() {
  for (const Submission& receive : matching_.waiting()) {
    if (broken_) return;
    if (receive.deadline <= Clock::now()) return fail_for_late_receive(receive);
    const std::vector<int>& members = receive.group->members;
    const int named = receive.operation.peer;
    int absent = 0;
    for (int member = 0; member < receive.group->size(); ++member) {
      const int rank = members[static_cast<size_t>(member)];
      if (rank == options_.rank || (named != kAnyRank && named != member)) continue;
      if (!is_absent(rank)) continue;
      const bool is_last = named != kAnyRank || ++absent == receive.group->size() - 1;
      if (!is_last && peer(rank).presence != Presence::kDead) continue;
      return fail({FaultKind::kPeer, rank,
                   title_of(receive) + ": " + name_of_rank(rank) + " " + peer(rank).lost_because +
                       " before sending anything for it"},
                  true);
    }
  }
}

void Conductor::fail_late(const Pending& late) {
  const std::vector<int> missing = late.missing();
  const std::vector<int>& members = late.submission().group->members;
  std::string who;
  for (const int member : missing) {
    who += (who.empty() ? "" : ", ") + name_of_rank(members[static_cast<size_t>(member)]);
  }
  const std::chrono::milliseconds timeout = late.submission().operation.timeout;
  const int culprit = missing.empty() ? options_.rank : members[static_cast<size_t>(missing[0])];
  const bool is_message = late.submission().id.way != Way::kCollective;
  fail({FaultKind::kTimeout, culprit,
        title_of(late.submission()) + ": the timeout of " + text_of(timeout) + " is over on " +
            name_of_rank(options_.rank) + ", which waits for " + who + ". " +
            (is_message ? "Every send needs its receive"
                        : "Every rank must call the same collectives") +
            "; if one is only slow, give a longer timeout"},
       true);
}

void Conductor::fail_for_late_receive(const Submission& receive) {
  fail({FaultKind::kTimeout, options_.rank,
        title_of(receive) + ": the timeout of " + text_of(receive.operation.timeout) +
            " is over on " + name_of_rank(options_.rank) +
            ", and nobody has sent anything for it. Every receive needs its send; if that is only "
            "slow, give a longer timeout"},
       true);
}

void Conductor::fail_for_lost(const Pending& pending, int member) {
  const int rank = pending.submission().group->members[static_cast<size_t>(member)];
  const std::string what =
      pending.owes_us(member) ? " before sending its share" : " before taking its share";
  fail({FaultKind::kPeer, rank,
        title_of(pending.submission()) + ": " + name_of_rank(rank) + " " + peer(rank).lost_because +
            what},
       true);
}

void Conductor::fail_for_mismatch(const OperationId& id, const Descriptor& ours, int rank,
                                  const Descriptor& theirs) {
  const std::string our_call = name_of_rank(options_.rank) + " called " + text_of(ours);
  const std::string their_call = name_of_rank(rank) + " called " + text_of(theirs);
  const bool is_lower = options_.rank < rank;
  fail({FaultKind::kUsage, rank,
        (is_lower ? their_call : our_call) + " while " + (is_lower ? our_call : their_call) +
            " as " + text_of(id)},
       true);
}

// A peer announces what is over here: ranks that agree never do. False: it is not over.
bool Conductor::take_ready_of_past(int rank, const OperationId& id, const Descriptor& theirs) {
  if (id.way != Way::kCollective) {
    if (matching_.was_posted(id)) throw PeerError("announced a message again that is over");
    return false;
  }
  const std::deque<Past>& past = history_[id.group];
  if (past.empty() || id.sequence > past.back().sequence) return false;
  for (const Past& each : past) {
    if (each.sequence != id.sequence) continue;
    fail_for_mismatch(id, each.descriptor, rank, theirs);
    return true;
  }
  fail({FaultKind::kUsage, rank,
        name_of_rank(rank) + " called " + text_of(theirs) + " as " + text_of(id) +
            ", which is long over on " + name_of_rank(options_.rank) +
            ": ranks have called different numbers of collectives"},
       true);
  return true;
}

// What a peer announced before we posted an operation that was over at once, such as
// a sum of nothing.
void Conductor::meet_past(int rank, const OperationId& id, const Descriptor& theirs) {
  const std::deque<Past>& past = history_[id.group];
  for (const Past& each : past) {
    const bool is_same = id.way == Way::kCollective && each.sequence == id.sequence;
    if (is_same && !agree(each.descriptor, theirs)) {
      return fail_for_mismatch(id, each.descriptor, rank, theirs);
    }
  }
}

void Conductor::take_abort(int rank) {
  const std::vector<uint8_t>& control = peer(rank).control;
  const Fault fault = decode_fault(std::string(control.begin(), control.end()));
  fail(fault, false);
}

// is_ours: found here, not told by another rank.
void Conductor::fail(Fault fault, bool is_ours) {
  if (broken_) return;
  fault_ = std::move(fault);
  broken_ = error_of(fault_);
  {
    MutexLock lock(failure_mutex_);
    failure_ = broken_;
  }
  // Who waits for an operation is told by it.
  const bool is_own_wish = is_ours && fault_.kind == FaultKind::kAborted;
  const bool is_silent = pending_.empty() && matching_.waiting().empty() && !is_own_wish;
  if (options_.log && is_silent) options_.log("the job is aborted: " + fault_.text);
  fail_all(broken_);
  tell(fault_, is_ours);
}

// The order matters: nothing may touch an operation's memory once its caller knows.
void Conductor::fail_all(const std::exception_ptr& error) {
  transport_.release_payloads();
  in_flight_.clear();
  for (Peer& each : peers_) {
    each.outbox.clear();
    each.chunks_in_flight = 0;
    each.num_early = 0;
    each.early_bytes = 0;
    each.rider_bytes = 0;
  }
  for (auto& [number, pending] : pending_) {
    --pending.submission().group->pending;
    completions_.push(pending.submission().operation, error);
  }
  for (Submission& receive : matching_.take_waiting()) {
    --receive.group->pending;
    completions_.push(receive.operation, error);
  }
  pending_.clear();
  shared_.clear();
  exchanges_.clear();
  is_busy_ = false;
  deadlines_.clear();
  excuses_.clear();
  announced_.clear();
}

// Connected peers pass it on. Whoever found the fault also dials those it may
// dial; those that dial it are told when they do.
void Conductor::tell(const Fault& fault, bool is_ours) {
  Frame frame;
  frame.type = FrameType::kAbort;
  const std::string text = encode(fault);
  for (int rank = 0; rank < options_.size; ++rank) {
    const Peer& other = peer(rank);
    const bool may_dial = is_ours && rank < options_.rank && other.lost_because.empty();
    if (rank != options_.rank && (other.is_connected || may_dial)) send_text(rank, frame, text);
  }
}

bool Conductor::has_untold_peers() const {
  if (!broken_) return false;
  int untold = 0;
  for (const Peer& each : peers_) untold += !each.is_connected && each.lost_because.empty();
  return untold > 1;  // this rank itself is one of them
}

void Conductor::leave() {
  if (!broken_) {
    broken_ = error_of({FaultKind::kAborted, options_.rank,
                        name_of_rank(options_.rank) + " has shut its engine down"});
    fail_all(broken_);
  }
  Frame frame;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (peer(rank).is_connected) send_text(rank, frame, {});
  }
}

std::string Conductor::title_of(const Submission& submission) const {
  const bool is_waiting = submission.id.way == Way::kReceive && submission.id.peer < 0;
  const std::string what = is_waiting
                               ? "a message with tag " + std::to_string(submission.id.channel) +
                                     " of group " + std::to_string(submission.id.group)
                               : text_of(submission.id);
  return what + ", " + text_of(submission.descriptor);
}

const std::string& Conductor::name_of_rank(int rank) const {
  return names_[static_cast<size_t>(rank)];
}

}  // namespace smdist
