// SPDX-License-Identifier: Apache-2.0
#include "engine/late_watch.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace smdist {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr size_t kMaxOperations = 64;  // reports on more operations at a time are ignored
constexpr size_t kMaxNamed = 8;        // ranks in one line
constexpr size_t kMaxDescribed = 4;    // ranks in one line with their last operations

std::string more_text(size_t count, size_t named) {
  return count > named ? " and " + std::to_string(count - named) + " more" : "";
}

}  // namespace

LateWatch::LateWatch(const Options& options, const RankNames& names)
    : options_(options), names_(names), last_(static_cast<size_t>(options.size)) {}

void LateWatch::on_posted(int rank, const OperationId& id, const Descriptor& descriptor,
                          Clock::time_point now) {
  const bool is_message = is_point_to_point(descriptor.kind);
  last_[static_cast<size_t>(rank)] = {
      true,
      {id.group,
       id.sequence,
       descriptor.kind,
       descriptor.dtype,
       descriptor.kind == Collective::kAllToAll && !is_message ? descriptor.to_bytes
                                                               : descriptor.bytes,
       {}},
      now};
}

LateRank LateWatch::late_rank(int rank, bool has_come, Clock::time_point now) const {
  const LastPosted& posted = last_[static_cast<size_t>(rank)];
  LateRank late{has_come, std::nullopt};
  if (!posted.is_known) return late;
  late.last = posted.operation;
  late.last->age = std::max(duration_cast<milliseconds>(now - posted.at), milliseconds(0));
  return late;
}

void LateWatch::plan(Clock::time_point at) { next_ = std::min(next_, at); }

void LateWatch::add(const OperationId& id, const LateReport& report, int sender,
                    Clock::time_point now) {
  if (collected_.size() >= kMaxOperations && collected_.count(id) == 0) return;
  const auto [found, is_new] = collected_.try_emplace(id);
  Collected& collected = found->second;
  if (is_new) {
    collected.report.descriptor = report.descriptor;
    collected.due = now + options_.late_after / (options_.rank == 0 ? 5 : 20);
  }
  collected.report.waited = std::max(collected.report.waited, report.waited);
  merge(collected.report.ranks, report.ranks);
  collected.senders.insert(sender);
  plan(collected.due);
}

std::vector<LateWatch::Due> LateWatch::take_due(Clock::time_point now) {
  std::vector<Due> due;
  for (auto each = collected_.begin(); each != collected_.end();) {
    Collected& collected = each->second;
    if (collected.due > now) {
      plan(collected.due);
      ++each;
      continue;
    }
    for (const int sender : collected.senders) collected.report.ranks.erase(sender);
    due.push_back({each->first, std::move(collected.report)});
    each = collected_.erase(each);
  }
  return due;
}

bool LateWatch::add_answer(const OperationId& id, const LateReport& report, int sender) {
  const auto found = answers_.find(id);
  if (found == answers_.end()) return false;
  found->second.senders.insert(sender);
  merge(found->second.ranks, report.ranks);
  return true;
}

LateRanks LateWatch::stopping(const OperationId& id, const LateRanks& late) const {
  const auto found = answers_.find(id);
  if (found == answers_.end()) return late;
  LateRanks ranks = late;
  merge(ranks, found->second.ranks);
  ranks.erase(options_.rank);
  for (const int sender : found->second.senders) ranks.erase(sender);
  return ranks.empty() ? late : ranks;
}

std::optional<std::string> LateWatch::line_of(const Due& due, Clock::time_point now) {
  LateRanks ranks = due.report.ranks;
  const auto is_absent = [](const auto& each) { return !each.second.has_come; };
  const bool any_absent = std::any_of(ranks.begin(), ranks.end(), is_absent);
  for (auto each = ranks.begin(); any_absent && each != ranks.end();) {
    each = is_absent(*each) ? std::next(each) : ranks.erase(each);
  }
  if (ranks.empty()) return std::nullopt;
  for (auto each = logged_.begin(); each != logged_.end();) {
    const bool is_old = now - each->second.at >= options_.late_again - options_.late_after / 2;
    each = is_old ? logged_.erase(each) : std::next(each);
  }
  Logged& logged = logged_[due.id];
  const bool is_known = std::all_of(ranks.begin(), ranks.end(), [&](const auto& each) {
    return logged.ranks.count(each.first) > 0;
  });
  if (is_known) return std::nullopt;
  logged.at = now;
  for (const auto& each : ranks) logged.ranks.insert(each.first);
  const std::string after =
      " after " + std::to_string(duration_cast<std::chrono::seconds>(due.report.waited).count()) +
      " s";
  return smdist::text_of(due.id) + ", " + smdist::text_of(due.report.descriptor) + ": " +
         (any_absent ? text_of(names_, ranks) + " " + (ranks.size() > 1 ? "have" : "has") +
                           " not come" + after
                     : "the data of " + text_of(names_, ranks) + " have not arrived" + after);
}

void LateWatch::clear() {
  collected_.clear();
  answers_.clear();
  logged_.clear();
  next_ = kNever;
}

std::string text_of(const RankNames& names, const LateRanks& ranks) {
  std::string text;
  size_t count = 0;
  for (const auto& [rank, late] : ranks) {
    if (++count > kMaxNamed) break;
    text += (count > 1 ? ", " : "") + names.of(rank);
    if (count > kMaxDescribed) continue;
    // operations by which ranks choose settings are no calls of the script
    const bool has_called = late.last && late.last->group != kStartGroup;
    text += has_called ? " (last operation: " + text_of(*late.last) + ")"
                       : " (has called no collective yet)";
  }
  return text + more_text(ranks.size(), kMaxNamed);
}

}  // namespace smdist
