// SPDX-License-Identifier: Apache-2.0
// Decides which thread makes progress.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "smdist/completion.h"
#include "smdist/transport.h"

namespace smdist {

// One thread at a time holds the lock, and it alone uses the ProgressEngine and the transport. The
// holder is the engine's own thread, the *progress thread*, or a caller that would only wait
// otherwise; such a caller saves two hand-overs from thread to thread.
//
// Why no wake-up is lost. There are three reasons for the engine to do something: another thread
// left work in the inbox and called notify(); something came from the network; or a deadline is
// over.
//
// 1. A new holder knows nothing yet: it calls ack_wakeup(), takes the inbox, moves bytes, and only
//    then works out how long it may sleep. No time is carried over from one holder to the next.
// 2. Work is left before notify(), and taken after ack_wakeup(). So whatever ack_wakeup() forgets
//    is taken, and work that comes later causes a new wake-up. The transport's wake-up stays up
//    until ack_wakeup(), which only the holder calls: a thread that goes to sleep after notify()
//    finds it up, and the holder that takes it down is responsible from then on.
// 3. A holder that sleeps keeps the lock. It sleeps in the transport, where all three reasons
//    wake it.
// 4. The progress thread sleeps without the lock, in one of two ways. In the transport it is woken
//    as in 3, except for deadlines that were set later. At rest, on the condition variable, it is
//    woken by this class alone, and rests_until_ and checks_at_ say for how long it rests.
// 5. So a holder that releases the lock while work is in flight, or in the inbox, wakes the
//    progress thread, which acquires the lock as in 1. Without work only the network can bring
//    news, which no caller waits for: the thread may rest, but never longer than kRest after that.
// 6. Callers that wait while another thread holds the lock are woken by their own operations.
//    Notifying them when the lock is free is for speed: the progress thread has been woken, too.
//
// Each of these states changes under mutex_, and is waited for under it.
//
// Thread safety: as each method says.
class SMDIST_CAPABILITY("progress") ProgressLock final {
 public:
  using Clock = std::chrono::steady_clock;

  // Time for which the progress thread leaves the network alone when nothing is in flight and
  // callers hold the lock now and then.
  static constexpr std::chrono::milliseconds kRest{10};

  explicit ProgressLock(Transport& transport) : transport_(transport) {}

  // Callers may acquire the lock between open() and close(). A holder at close() goes on.
  void open() SMDIST_EXCLUDES(mutex_);
  void close() SMDIST_EXCLUDES(mutex_);

  // For callers. Never blocks for long: returns false if another thread holds the lock.
  bool try_acquire() SMDIST_TRY_ACQUIRE(true);
  // is_quiet: nothing is in flight here, and nothing has a deadline.
  void release(bool is_quiet) SMDIST_RELEASE();
  // Block until the lock may be free, until the completion is done, or until the given time.
  void wait_turn(Completion& completion, Clock::time_point until) SMDIST_EXCLUDES(mutex_);

  // For the progress thread: acquires the lock when there may be something to do.
  void acquire_when_due() SMDIST_ACQUIRE();
  // For the progress thread: releases the lock. Sleep in the transport's await() afterwards.
  void release_to_await() SMDIST_RELEASE();

  // For any thread: work was left in the inbox.
  void notify() SMDIST_EXCLUDES(mutex_);
  // For the holder: call before taking the inbox.
  void ack_wakeup() SMDIST_REQUIRES(this) SMDIST_EXCLUDES(mutex_);

  // Marks a caller inside the engine, which must not be destroyed meanwhile.
  class CallerScope final {
   public:
    explicit CallerScope(ProgressLock& progress);
    ~CallerScope();
    CallerScope(const CallerScope&) = delete;
    CallerScope& operator=(const CallerScope&) = delete;

   private:
    ProgressLock& progress_;
  };
  void wait_for_callers() SMDIST_EXCLUDES(mutex_);

 private:
  void hold() SMDIST_REQUIRES(mutex_);
  bool hold_if_free() SMDIST_EXCLUDES(mutex_);
  void hold_when_due() SMDIST_EXCLUDES(mutex_);
  bool is_due() const SMDIST_REQUIRES(mutex_);
  void rest() SMDIST_REQUIRES(mutex_);
  void free_and_hand_over(bool is_quiet) SMDIST_EXCLUDES(mutex_);
  void free_to_await() SMDIST_EXCLUDES(mutex_);
  void set_free() SMDIST_REQUIRES(mutex_);
  void raise_wakeup() SMDIST_REQUIRES(mutex_);

  Transport& transport_;
  Mutex mutex_;
  bool is_open_ SMDIST_GUARDED_BY(mutex_) = false;
  bool is_held_ SMDIST_GUARDED_BY(mutex_) = false;
  std::thread::id holder_ SMDIST_GUARDED_BY(mutex_);
  uint64_t num_acquired_ SMDIST_GUARDED_BY(mutex_) = 0;
  bool is_wakeup_up_ SMDIST_GUARDED_BY(mutex_) = false;  // that of the transport
  bool has_own_work_ SMDIST_GUARDED_BY(mutex_) = false;  // the holder left some for itself

  // State of the progress thread.
  bool is_resting_ SMDIST_GUARDED_BY(mutex_) = false;
  Clock::time_point checks_at_ SMDIST_GUARDED_BY(mutex_);    // unless it is woken from its rest
  Clock::time_point rests_until_ SMDIST_GUARDED_BY(mutex_);  // at most, while the lock is free
  std::condition_variable_any rested_;

  std::vector<Completion*> waiting_ SMDIST_GUARDED_BY(mutex_);  // in wait_turn()
  size_t num_callers_ SMDIST_GUARDED_BY(mutex_) = 0;
  std::condition_variable_any callers_left_;
};

}  // namespace smdist
