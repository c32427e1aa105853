// SPDX-License-Identifier: Apache-2.0
// How the conductor fails: once, everywhere, with a sentence.
#include <algorithm>
#include <utility>

#include "engine/conductor.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr std::chrono::milliseconds kExcuse{1000};

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
  if (lost.presence == Presence::kLeft) {
    lost.lost_because = "has left the group";
    lost.excused_until = Clock::now() + kExcuse;
    excuses_.insert(lost.excused_until);
  } else {
    lost.presence = Presence::kDead;
    lost.lost_because = reason;
  }
  for (const auto& [number, pending] : pending_) {
    check_partners(pending);
    if (broken_) return;
  }
}

// Fails if the operation needs a member that is gone. Who left in order is
// excused for a moment: it may be ending with an error of its own, and whoever
// watches the processes shall see that one first.
void Conductor::check_partners(const Pending& pending) {
  const std::vector<int>& members = pending.submission().group->members;
  for (const int member : pending.partners()) {
    const Peer& partner = peer(members[static_cast<size_t>(member)]);
    const bool is_absent = !partner.lost_because.empty() && partner.excused_until <= Clock::now();
    if (is_absent && pending.needs(member)) {
      return fail_for_lost(pending, member);
    }
  }
}

void Conductor::check_absent() {
  if (excuses_.empty() || *excuses_.begin() > Clock::now()) return;
  excuses_.erase(excuses_.begin());
  for (const auto& [number, pending] : pending_) {
    check_partners(pending);
    if (broken_) return;
  }
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

void Conductor::fail_for_mismatch(Number number, const Descriptor& ours, int rank,
                                  const Descriptor& theirs) {
  const std::string our_call = name_of_rank(options_.rank) + " called " + text_of(ours);
  const std::string their_call = name_of_rank(rank) + " called " + text_of(theirs);
  const bool is_lower = options_.rank < rank;
  fail({FaultKind::kUsage, rank,
        (is_lower ? their_call : our_call) + " while " + (is_lower ? our_call : their_call) +
            " as operation " + std::to_string(number.second) + " of group " +
            std::to_string(number.first)},
       true);
}

// A peer announces what is over here: ranks that agree never do.
void Conductor::take_ready_of_past(int rank, const Frame& frame, const Descriptor& theirs) {
  for (const Past& past : history_[frame.group]) {
    if (past.sequence != frame.sequence) continue;
    return fail_for_mismatch({frame.group, frame.sequence}, past.descriptor, rank, theirs);
  }
  fail({FaultKind::kUsage, rank,
        name_of_rank(rank) + " called " + text_of(theirs) + " as operation " +
            std::to_string(frame.sequence) + " of group " + std::to_string(frame.group) +
            ", which is long over on " + name_of_rank(options_.rank) +
            ": ranks have called different numbers of collectives"},
       true);
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
  // Who waits for an operation is told by it.
  const bool is_own_wish = is_ours && fault_.kind == FaultKind::kAborted;
  const bool is_silent = pending_.empty() && !is_own_wish;
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
  }
  for (auto& [number, pending] : pending_) {
    --pending.submission().group->pending;
    completions_.push(std::move(pending.submission().operation.done), error);
  }
  pending_.clear();
  deadlines_.clear();
  excuses_.clear();
  early_.clear();
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
  return "operation " + std::to_string(submission.sequence) + " of group " +
         std::to_string(submission.group->id) + ", " + text_of(submission.descriptor);
}

const std::string& Conductor::name_of_rank(int rank) const {
  return names_[static_cast<size_t>(rank)];
}

}  // namespace smdist
