// SPDX-License-Identifier: Apache-2.0
// Faults that end the engine: those of this rank and of others.
#include <algorithm>

#include "engine/fault_messages.h"
#include "engine/progress_engine.h"

namespace smdist {

// Sends the fault, if there is one, to a peer that has just connected.
void ProgressEngine::on_connected(int rank) {
  detector_.on_connected(rank);
  if (error()) faults_.send_to(rank);
}

void ProgressEngine::on_altered(int rank, const std::string& reason) {
  fail(protocol_error(names_, rank, reason), true);
}

void ProgressEngine::on_peer_lost(int rank, const std::string& reason) {
  sender_.on_peer_lost(rank);
  detector_.on_peer_lost(rank, reason);
  check_partners();
}

void ProgressEngine::on_abort(int rank) {
  fail(decode_fault(std::string(payload(rank).begin(), payload(rank).end())), false);
}

void ProgressEngine::check_partners() {
  for (const auto& [id, pending] : pending_) {
    // fail() empties the table.
    if (const std::optional<Fault> fault = detector_.check(pending)) return fail(*fault, true);
  }
  fail_if(detector_.check(matching_.waiting()));
}

void ProgressEngine::check_deadlines() {
  if (detector_.end_grace_period()) check_partners();
  fail_if(detector_.check(matching_.waiting()));
  const Clock::time_point now = Clock::now();
  turn_ = now;
  if (late_.is_due(now)) report_late(now);
  if (!detector_.late(now)) return;
  advance_sums();  // if this process was suspended, data of its peers may have arrived meanwhile
  const std::optional<OperationId> id = detector_.late(now);
  if (is_busy_ || !id) return;
  PendingOperation& late = *find(*id);
  if (detector_.extend(late)) return ask_whether_waiting(late, now);
  const LateRanks ranks = late_.stopping(*id, late_ranks_of(late, now));
  fail(operation_timed_out(names_, late.submission(), ranks), true);
}

std::chrono::milliseconds ProgressEngine::time_until_deadline() const {
  using std::chrono::milliseconds;
  constexpr milliseconds kLongest{60'000};
  Clock::time_point next = detector_.next_deadline(Clock::now() + kLongest);
  next = std::min(next, late_.next());
  for (const Submission& receive : matching_.waiting()) next = std::min(next, receive.deadline);
  const auto left = next - Clock::now();
  const auto rounded = std::chrono::duration_cast<milliseconds>(left) + milliseconds(1);
  return std::clamp(rounded, milliseconds(0), kLongest);
}

bool ProgressEngine::is_quiet() const {
  return pending_.empty() && matching_.waiting().empty() && !detector_.has_grace_periods();
}

void ProgressEngine::fail_if(const std::optional<Fault>& fault) {
  if (fault) fail(*fault, true);
}

// Ends the engine with a fault. is_found_here: this rank detected the fault; false if it was
// received from another rank.
void ProgressEngine::fail(const Fault& fault, bool is_found_here) {
  if (error()) return;
  if (!pending_.empty() || !matching_.waiting().empty()) faults_.set_last_error(nullptr);
  faults_.record(fault);
  // Without pending operations, which would report the fault to callers, write it to the log.
  const bool is_own_abort = is_found_here && fault.kind == FaultKind::kAborted;
  const bool is_silent = pending_.empty() && matching_.waiting().empty() && !is_own_abort;
  if (options_.log && is_silent) options_.log("the job is aborted: " + fault.text);
  fail_all();
  faults_.send_to_all(is_found_here);
  if (options_.on_failure) options_.on_failure();
}

// Fails all pending operations. The transport stops using their memory first, because callers may
// reuse it as soon as they receive the error.
void ProgressEngine::fail_all() {
  transport_.release_payloads([](int, const HeaderBytes&) { return true; });
  sender_.clear();
  for (auto& [id, pending] : pending_) complete(pending.submission(), error());
  for (Submission& receive : matching_.take_waiting()) complete(receive, error());
  pending_.clear();
  sums_.clear();
  is_busy_ = false;
  detector_.clear();
  late_.clear();
  unexpected_.clear();
  disagreements_.clear();
}

void ProgressEngine::leave() {
  if (!error()) {
    faults_.close(engine_shut_down(names_));
    fail_all();
  }
  const Frame leaving;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (detector_.is_connected(rank)) sender_.send(rank, leaving);
  }
}

}  // namespace smdist
