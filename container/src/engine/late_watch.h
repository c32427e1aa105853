// SPDX-License-Identifier: Apache-2.0
// Times and texts of the reports on ranks that do not come to a collective.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/rank_names.h"
#include "engine/submission.h"
#include "messaging/late_report.h"
#include "messaging/operation_id.h"
#include "smdist/options.h"

namespace smdist {

// Stores the last operation of each peer, when to look for late ranks next, and the reports on
// operations that wait to be passed on or logged. Its owner, ProgressEngine, looks and sends.
//
// Reports of several ranks on one operation are collected for a while, so that one line names all
// late ranks: for a twentieth of Options::late_after, and on rank 0 for a fifth. The same ranks of
// an operation are not logged again within Options::late_again.
//
// Thread safety: none.
class LateWatch final {
 public:
  // A report that is to be passed on or logged now.
  struct Due {
    OperationId id;
    LateReport report;
  };

  LateWatch(const Options& options, const RankNames& names);

  // Record that a peer has posted an operation.
  void on_posted(int rank, const OperationId& id, const Descriptor& descriptor,
                 Clock::time_point now);
  // Return the rank as a LateRank. has_come: it has posted the operation that waits for it.
  LateRank late_rank(int rank, bool has_come, Clock::time_point now) const;

  // Plan a look at all pending operations at the given time, or earlier.
  void plan(Clock::time_point at);
  // Return whether there is something to do at this time.
  bool is_due(Clock::time_point now) const { return now >= next_; }
  Clock::time_point next() const { return next_; }
  // Forget the planned time. Call before all operations are looked at and planned again.
  void begin_look() { next_ = kNever; }

  // Add a report of this rank, or of the peer `sender`.
  void add(const OperationId& id, const LateReport& report, int sender, Clock::time_point now);
  // Remove and return the reports that have been collected.
  std::vector<Due> take_due(Clock::time_point now);

  // Collect the answers to a question of this rank: do the ranks for which an operation waits wait
  // themselves?
  void begin_asking(const OperationId& id) { answers_.try_emplace(id); }
  // Record that `sender` itself waits for the ranks of a report. Returns false if this rank
  // has no question about the operation.
  bool add_answer(const OperationId& id, const LateReport& report, int sender);
  // Remove what was collected about an operation, because it has ended.
  void end_asking(const OperationId& id) { answers_.erase(id); }
  // Return the ranks that stop an operation: those of `late`, and those for which they wait,
  // without the ranks that have answered. Returns `late` if all have answered.
  LateRanks stopping(const OperationId& id, const LateRanks& late) const;

  // Return the line of the log for a report; none if it was logged a short time ago.
  std::optional<std::string> line_of(const Due& due, Clock::time_point now);

  // Remove all reports, because the engine has failed.
  void clear();

 private:
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  struct LastPosted {
    bool is_known = false;
    LastOperation operation;
    Clock::time_point at;
  };
  struct Collected {
    LateReport report;
    std::set<int> senders;  // ranks that wait themselves
    Clock::time_point due;
  };
  struct Answers {
    std::set<int> senders;
    LateRanks ranks;
  };
  struct Logged {
    Clock::time_point at;
    std::set<int> ranks;
  };

  const Options& options_;
  const RankNames& names_;
  std::vector<LastPosted> last_;  // by rank
  std::map<OperationId, Collected> collected_;
  std::map<OperationId, Answers> answers_;
  std::map<OperationId, Logged> logged_;
  Clock::time_point next_ = kNever;
};

// Return texts such as "rank 3 on algo-2 (last operation: ...), rank 7 on algo-4 and 12 more".
std::string text_of(const RankNames& names, const LateRanks& ranks);

}  // namespace smdist
