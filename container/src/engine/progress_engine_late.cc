// SPDX-License-Identifier: Apache-2.0
// Reports on ranks that do not come to a collective, long before its timeout.
//
// After Options::late_after, a rank that waits sends a LATE frame to the lowest member that has
// posted the operation. That member adds the late ranks that it knows itself, and sends them to
// rank 0, which logs one line for all of them. If rank 0 is late itself, or not a member, the
// lowest member logs the line. A rank that is late usually leaves others waiting that have come;
// they send reports, so they are not named.
//
// At the timeout, a rank that waits for data of ranks that have all posted the operation asks them,
// by LATE frames that name no rank, whether they wait themselves. A rank that waits answers with a
// report. The rank that stops the others, for example because its process is stopped, does not.
#include <algorithm>

#include "engine/progress_engine.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;

bool includes(const Group& group, int rank) {
  return std::find(group.members.begin(), group.members.end(), rank) != group.members.end();
}

}  // namespace

// Looks for late ranks of all pending collectives, and passes reports on.
void ProgressEngine::report_late(Clock::time_point now) {
  late_.begin_look();
  for (auto& [id, pending] : pending_) {
    if (id.role != Role::kCollective) continue;
    if (now >= pending.submission().late_at) look_for_late(pending, now);
    late_.plan(pending.submission().late_at);
  }
  for (const LateWatch::Due& due : late_.take_due(now)) pass_on(due, now);
}

void ProgressEngine::look_for_late(PendingOperation& pending, Clock::time_point now) {
  Submission& submission = pending.submission();
  const uint64_t progress = pending.num_events() + num_sum_chunks_;
  const bool is_moving = progress != submission.late_progress;
  submission.late_progress = progress;
  const bool has_all = pending.is_blocked_by_ready_members();
  if (has_all && is_moving) {
    submission.late_at = now + options_.late_after;
    return;
  }
  submission.late_at = now + options_.late_again;
  late_.add(submission.id, report_of(pending, now), options_.rank, now);
}

LateReport ProgressEngine::report_of(const PendingOperation& pending, Clock::time_point now) {
  const Submission& submission = pending.submission();
  return {submission.descriptor,
          std::chrono::duration_cast<milliseconds>(now - submission.submitted),
          late_ranks_of(pending, now)};
}

// Returns the ranks for which an operation waits, with their last operations.
LateRanks ProgressEngine::late_ranks_of(const PendingOperation& pending, Clock::time_point now) {
  LateRanks ranks;
  for (const int member : pending.blocking_members()) {
    const int rank = pending.submission().rank_of(member);
    ranks[rank] = late_.late_rank(rank, pending.is_ready(member), now);
  }
  return ranks;
}

void ProgressEngine::pass_on(const LateWatch::Due& given, Clock::time_point now) {
  LateWatch::Due due = given;
  const PendingOperation* pending = find(due.id);
  if (pending == nullptr && (options_.rank != 0 || history_.is_past(due.id))) return;
  if (pending != nullptr) drop_arrived(*pending, due.report.ranks);
  if (due.report.ranks.empty()) return;
  const int receiver = pending == nullptr ? 0 : receiver_of(*pending, due.report.ranks);
  if (receiver != options_.rank) return send_report(receiver, due.id, due.report);
  const std::optional<std::string> line = late_.line_of(due, now);
  if (line && options_.log) options_.log(*line);
}

// Removes the ranks that have come since they were reported.
void ProgressEngine::drop_arrived(const PendingOperation& pending, LateRanks& ranks) {
  for (const int member : pending.partners()) {
    const auto found = ranks.find(pending.submission().rank_of(member));
    if (found == ranks.end() || found->second.has_come) continue;
    if (pending.is_ready(member)) ranks.erase(found);
  }
}

// Returns the rank to which this rank sends its report; this rank itself, if it has to log it.
int ProgressEngine::receiver_of(const PendingOperation& pending, const LateRanks& late) const {
  int lowest = options_.rank;
  for (const int member : pending.partners()) {
    const int rank = pending.submission().rank_of(member);
    if (pending.is_ready(member) && late.count(rank) == 0) lowest = std::min(lowest, rank);
  }
  const bool may_be_informed = includes(*pending.submission().group, 0) && late.count(0) == 0;
  return lowest == options_.rank && may_be_informed ? 0 : lowest;
}

void ProgressEngine::on_late(int rank, const Frame& frame) {
  if (frame.role != Role::kCollective) {
    throw PeerError("sent a report on the late ranks of a message, which has none");
  }
  const LateReport report = decode_late_report(payload(rank), options_.size);
  if (error()) return;
  const OperationId id = id_of(frame, rank);
  if (report.ranks.empty()) return answer(rank, id);
  if (!late_.add_answer(id, report, rank)) late_.add(id, report, rank, Clock::now());
}

void ProgressEngine::ask_whether_waiting(const PendingOperation& pending, Clock::time_point now) {
  const Submission& submission = pending.submission();
  if (submission.id.role != Role::kCollective) return;
  late_.begin_asking(submission.id);
  for (const auto& each : late_ranks_of(pending, now)) {
    send_report(each.first, submission.id, {submission.descriptor, {}, {}});
  }
}

void ProgressEngine::answer(int rank, const OperationId& id) {
  const PendingOperation* pending = find(id);
  if (pending == nullptr) return;
  const LateReport report = report_of(*pending, Clock::now());
  if (!report.ranks.empty()) send_report(rank, id, report);
}

void ProgressEngine::send_report(int receiver, const OperationId& id, const LateReport& report) {
  Frame frame = frame_of(id);
  frame.type = FrameType::kLate;
  sender_.send(receiver, frame, encode(report));
}

}  // namespace smdist
