// SPDX-License-Identifier: Apache-2.0
#include "engine/progress_lock.h"

#include <algorithm>

namespace smdist {

using std::chrono::milliseconds;

void ProgressLock::open() {
  MutexLock lock(mutex_);
  is_open_ = true;
}

void ProgressLock::close() {
  MutexLock lock(mutex_);
  is_open_ = false;
}

bool ProgressLock::try_acquire() { return hold_if_free(); }
void ProgressLock::release(bool is_quiet) { free_and_hand_over(is_quiet); }
void ProgressLock::acquire_when_due() { hold_when_due(); }
void ProgressLock::release_to_await() { free_to_await(); }

void ProgressLock::hold() {
  is_held_ = true;
  holder_ = std::this_thread::get_id();
  ++num_acquired_;
}

// Marks the lock as free and notifies all waiting callers, of which the first one acquires it.
void ProgressLock::set_free() {
  is_held_ = false;
  holder_ = {};
  for (Completion* completion : waiting_) completion->notify();
}

bool ProgressLock::hold_if_free() {
  MutexLock lock(mutex_);
  if (is_held_ || !is_open_) return false;
  hold();
  return true;
}

void ProgressLock::free_and_hand_over(bool is_quiet) {
  MutexLock lock(mutex_);
  const bool may_rest = is_quiet && !is_wakeup_up_ && !has_own_work_;
  rests_until_ = may_rest ? Clock::now() + kRest : Clock::time_point{};
  set_free();
  if (is_resting_) {
    if (checks_at_ > rests_until_) rested_.notify_all();
  } else if (!may_rest) {
    raise_wakeup();  // the progress thread is in the transport, or on its way to it or back
  }
}

void ProgressLock::wait_turn(Completion& completion, Clock::time_point until) {
  const uint64_t known_notifications = completion.num_notifications();
  {
    MutexLock lock(mutex_);
    if (!is_held_ && is_open_) return;
    waiting_.push_back(&completion);  // the holder notifies it when the lock is free
  }
  completion.wait_until(until, known_notifications);
  MutexLock lock(mutex_);
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &completion));
}

// Returns whether the progress thread has to acquire the lock. A rests_until_ of zero is in the
// past.
bool ProgressLock::is_due() const {
  return !is_held_ && (is_wakeup_up_ || Clock::now() >= rests_until_);
}

void ProgressLock::hold_when_due() {
  MutexLock lock(mutex_);
  while (!is_due()) rest();
  hold();
}

// Sleeps until is_due() or until the lock has been acquired again. While one caller keeps the lock,
// the time between checks doubles, up to 200 ms.
void ProgressLock::rest() {
  constexpr milliseconds kLongest{200};
  const uint64_t acquired = num_acquired_;
  is_resting_ = true;
  for (milliseconds pause = kRest; !is_due(); pause = std::min(2 * pause, kLongest)) {
    if (num_acquired_ != acquired) break;
    checks_at_ = is_held_ ? Clock::now() + pause : rests_until_;
    rested_.wait_until(mutex_, checks_at_);
  }
  is_resting_ = false;
}

void ProgressLock::free_to_await() {
  MutexLock lock(mutex_);
  rests_until_ = {};
  if (has_own_work_) raise_wakeup();
  set_free();
}

void ProgressLock::raise_wakeup() {
  if (is_wakeup_up_) return;
  is_wakeup_up_ = true;
  transport_.wake();
}

void ProgressLock::notify() {
  MutexLock lock(mutex_);
  if (is_held_ && holder_ == std::this_thread::get_id()) {
    has_own_work_ = true;
    return;
  }
  raise_wakeup();
  if (is_resting_ && !is_held_) rested_.notify_all();
}

void ProgressLock::ack_wakeup() {
  MutexLock lock(mutex_);
  has_own_work_ = false;
  if (!is_wakeup_up_) return;
  is_wakeup_up_ = false;
  transport_.clear_wake();
}

ProgressLock::CallerScope::CallerScope(ProgressLock& progress) : progress_(progress) {
  MutexLock lock(progress_.mutex_);
  ++progress_.num_callers_;
}

ProgressLock::CallerScope::~CallerScope() {
  MutexLock lock(progress_.mutex_);
  if (--progress_.num_callers_ == 0) progress_.callers_left_.notify_all();
}

void ProgressLock::wait_for_callers() {
  MutexLock lock(mutex_);
  while (num_callers_ > 0) callers_left_.wait(mutex_);
}

}  // namespace smdist
