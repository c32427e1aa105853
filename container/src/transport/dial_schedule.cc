// SPDX-License-Identifier: Apache-2.0
#include "transport/dial_schedule.h"

#include <algorithm>

namespace smdist {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kShortestPause{20};
constexpr milliseconds kLongestPause{1'000};

// Time limit of the first dial of a link; it doubles with each dial up to the longest limit. The
// kernel repeats the first packet of a connection after 1 and 3 seconds.
constexpr milliseconds kFirstDialTime{5'000};
constexpr milliseconds kLongestDialTime{60'000};

// Returns `first`, doubled `times` times, but at most `longest`.
milliseconds doubled(milliseconds first, int times, milliseconds longest) {
  constexpr int kMaxTimes = 16;
  return std::min(first * (1 << std::min(times, kMaxTimes)), longest);
}

}  // namespace

void DialSchedule::add(int link, Clock::time_point now, int refusals) {
  const auto [entry, is_new] = dials_.try_emplace(link);
  if (!is_new) return;
  entry->second.max_refusals = refusals;
  entry->second.end = Clock::time_point::max();
  wait(link, entry->second, now);
}

std::optional<int> DialSchedule::next(Clock::time_point now) {
  if (num_under_way_ >= kMaxDialsUnderWay) return std::nullopt;
  for (const Waiting* each : {&first_lanes_, &extra_lanes_}) {
    if (each->empty() || each->begin()->first > now) continue;
    const int link = each->begin()->second;
    Dial& dial = dials_.at(link);
    stop(link, dial);
    if (dial.end == Clock::time_point::max()) dial.end = now + limit_;
    dial.is_under_way = true;
    ++num_under_way_;
    return link;
  }
  return std::nullopt;
}

DialSchedule::Clock::time_point DialSchedule::deadline(int link, Clock::time_point now) const {
  const Dial& dial = dials_.at(link);
  return std::min(dial.end, now + doubled(kFirstDialTime, dial.failures, kLongestDialTime));
}

DialSchedule::Next DialSchedule::ended(int link, bool is_refused, Clock::time_point now) {
  const auto found = dials_.find(link);
  if (found == dials_.end()) return Next::kAgain;
  Dial& dial = found->second;
  stop(link, dial);
  ++dial.failures;
  dial.refusals = is_refused ? dial.refusals + 1 : 0;
  const bool is_over = dial.refusals >= dial.max_refusals;
  if (is_over || now >= dial.end) {
    dials_.erase(found);
    return is_over ? Next::kEnded : Next::kTooLate;
  }
  wait(link, dial, std::min(dial.end, now + pause_after(dial)));
  return Next::kAgain;
}

void DialSchedule::postpone(int link, Clock::time_point now) {
  const auto found = dials_.find(link);
  if (found == dials_.end()) return;
  stop(link, found->second);
  wait(link, found->second, now + kLongestPause / 4);
}

void DialSchedule::remove(int link) {
  const auto found = dials_.find(link);
  if (found == dials_.end()) return;
  stop(link, found->second);
  dials_.erase(found);
}

void DialSchedule::clear() {
  dials_.clear();
  first_lanes_.clear();
  extra_lanes_.clear();
  num_under_way_ = 0;
}

DialSchedule::Clock::time_point DialSchedule::next_due() const {
  Clock::time_point due = Clock::time_point::max();
  if (num_under_way_ >= kMaxDialsUnderWay) return due;
  for (const Waiting* each : {&first_lanes_, &extra_lanes_}) {
    if (!each->empty()) due = std::min(due, each->begin()->first);
  }
  return due;
}

int DialSchedule::failures(int link) const {
  const auto found = dials_.find(link);
  return found == dials_.end() ? 0 : found->second.failures;
}

void DialSchedule::wait(int link, Dial& dial, Clock::time_point due) {
  dial.due = due;
  waiting(link).emplace(due, link);
}

void DialSchedule::stop(int link, Dial& dial) {
  if (dial.is_under_way) --num_under_way_;
  dial.is_under_way = false;
  waiting(link).erase({dial.due, link});
}

// Returns the pause before the next dial. It varies at random, so that ranks whose connections
// ended together do not all come back together.
DialSchedule::Clock::duration DialSchedule::pause_after(const Dial& dial) {
  if (dial.refusals > 0) return kPauseAfterRefusal;
  const milliseconds pause = doubled(kShortestPause, dial.failures - 1, kLongestPause);
  return pause / 2 + std::chrono::milliseconds(random_() % static_cast<uint32_t>(pause.count()));
}

}  // namespace smdist
