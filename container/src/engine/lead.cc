// SPDX-License-Identifier: Apache-2.0
#include "engine/lead.h"

#include <algorithm>

namespace smdist {

using std::chrono::milliseconds;

void Lead::open() {
  MutexLock lock(mutex_);
  is_open_ = true;
}

void Lead::close() {
  MutexLock lock(mutex_);
  is_open_ = false;
}

bool Lead::try_take() { return hold_if_free(); }
void Lead::give_up(bool is_quiet) { let_go(is_quiet); }
void Lead::take_back() { hold_when_due(); }
void Lead::watch() { let_go_to_watch(); }

void Lead::hold() {
  is_held_ = true;
  holder_ = std::this_thread::get_id();
  ++num_turns_;
}

// Whoever stands by is called each time, and looks for himself whether he was the first.
void Lead::free() {
  is_held_ = false;
  holder_ = {};
  for (Ending* ending : standing_by_) ending->call();
}

bool Lead::hold_if_free() {
  MutexLock lock(mutex_);
  if (is_held_ || !is_open_) return false;
  hold();
  return true;
}

void Lead::let_go(bool is_quiet) {
  MutexLock lock(mutex_);
  const bool may_rest = is_quiet && !is_raised_ && !is_owed_;
  rests_until_ = may_rest ? Clock::now() + kRest : Clock::time_point{};
  free();
  if (is_resting_) {
    if (looks_at_ > rests_until_) rested_.notify_all();
  } else if (!may_rest) {
    raise();  // it sleeps in the transport, or is about to, or on its way here
  }
}

void Lead::stand_by(Ending& ending, Clock::time_point until) {
  const uint64_t known_calls = ending.num_calls();
  {
    MutexLock lock(mutex_);
    if (!is_held_ && is_open_) return;
    standing_by_.push_back(&ending);  // and whoever holds it calls when it is free
  }
  ending.await(until, known_calls);
  MutexLock lock(mutex_);
  standing_by_.erase(std::find(standing_by_.begin(), standing_by_.end(), &ending));
}

// A time of zero is long over.
bool Lead::is_due() const { return !is_held_ && (is_raised_ || Clock::now() >= rests_until_); }

void Lead::hold_when_due() {
  MutexLock lock(mutex_);
  while (!is_due()) rest();
  hold();
}

// Sleeps longer and longer while one caller leads; who gives up the lead ends that.
void Lead::rest() {
  constexpr milliseconds kLongest{200};
  const uint64_t turn = num_turns_;
  is_resting_ = true;
  for (milliseconds pause = kRest; !is_due(); pause = std::min(2 * pause, kLongest)) {
    if (num_turns_ != turn) break;
    looks_at_ = is_held_ ? Clock::now() + pause : rests_until_;
    rested_.wait_until(mutex_, looks_at_);
  }
  is_resting_ = false;
}

void Lead::let_go_to_watch() {
  MutexLock lock(mutex_);
  rests_until_ = {};
  if (is_owed_) raise();
  free();
}

void Lead::raise() {
  if (is_raised_) return;
  is_raised_ = true;
  transport_.wake();
}

void Lead::wake() {
  MutexLock lock(mutex_);
  if (is_held_ && holder_ == std::this_thread::get_id()) {
    is_owed_ = true;
    return;
  }
  raise();
  if (is_resting_ && !is_held_) rested_.notify_all();
}

void Lead::hear() {
  MutexLock lock(mutex_);
  is_owed_ = false;
  if (!is_raised_) return;
  is_raised_ = false;
  transport_.clear_wake();
}

Lead::Visit::Visit(Lead& lead) : lead_(lead) {
  MutexLock lock(lead_.mutex_);
  ++lead_.num_visitors_;
}

Lead::Visit::~Visit() {
  MutexLock lock(lead_.mutex_);
  if (--lead_.num_visitors_ == 0) lead_.left_.notify_all();
}

void Lead::await_visitors() {
  MutexLock lock(mutex_);
  while (num_visitors_ > 0) left_.wait(mutex_);
}

}  // namespace smdist
