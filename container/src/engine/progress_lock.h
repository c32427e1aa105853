// SPDX-License-Identifier: Apache-2.0
// Lock of the progress engine: decides which thread runs it.
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

// Gives one thread at a time the right to use the ProgressEngine and the transport. The holder is
// the engine's own thread, the *progress thread*, or a caller that waits for an operation; if the
// caller does the work itself, two switches between threads are saved.
//
// The following rules ensure that no wake-up is lost. The engine has work for three reasons:
// another thread put work into the inbox and called notify(); data arrived from the network; or a
// deadline has passed.
//
// 1. A new holder calls ack_wakeup(), takes the inbox, sends and receives data, and only then
//    computes how long it may sleep. It takes over no time limit from the previous holder.
// 2. Work is put into the inbox before notify(), and taken after ack_wakeup(). So all work is taken
//    for which ack_wakeup() has cleared the wake-up, and later work causes a new wake-up. The
//    wake-up of the transport stays set until ack_wakeup(), which only the holder calls: a thread
//    that goes to sleep after notify() finds it set, and the holder that clears it does the work.
// 3. A holder that sleeps keeps the lock. It sleeps in the transport, where all three reasons wake
//    it.
// 4. The progress thread sleeps without the lock, in one of two ways. In the transport, it is woken
//    as in 3, except for deadlines that were set later. On the condition variable ("at rest"), only
//    this class wakes it, and rests_until_ and checks_at_ limit the time.
// 5. So a holder that releases the lock while operations are in flight, or work is in the inbox,
//    wakes the progress thread, which acquires the lock as in 1. Without work, only data from the
//    network can cause work, and no caller waits for that: the progress thread may rest, for at
//    most kRest after the release.
// 6. Callers that wait while another thread holds the lock are woken when their own operations end.
//    They are also notified when the lock is free, only for speed: the progress thread has been
//    woken, too.
//
// All of this state changes under mutex_, and threads wait for it under mutex_.
//
// Thread safety: stated at each method.
class SMDIST_CAPABILITY("progress") ProgressLock final {
 public:
  using Clock = std::chrono::steady_clock;

  // Time for which the progress thread does not check the network, when no operation is in flight
  // and callers hold the lock now and then.
  static constexpr std::chrono::milliseconds kRest{10};

  explicit ProgressLock(Transport& transport) : transport_(transport) {}

  // Allow, and forbid, callers to acquire the lock. A caller that holds the lock at close() keeps
  // it.
  void open() SMDIST_EXCLUDES(mutex_);
  void close() SMDIST_EXCLUDES(mutex_);

  // Acquire the lock for a caller. Returns false at once if another thread holds it.
  bool try_acquire() SMDIST_TRY_ACQUIRE(true);
  // Release the lock for a caller. is_quiet: no operation is in flight here, and no deadline is
  // set.
  void release(bool is_quiet) SMDIST_RELEASE();
  // Block until the lock may be free, until the completion is done, or until the given time.
  void wait_turn(Completion& completion, Clock::time_point until) SMDIST_EXCLUDES(mutex_);

  // Acquire the lock for the progress thread. Blocks until there may be work.
  void acquire_when_due() SMDIST_ACQUIRE();
  // Release the lock for the progress thread, which then sleeps in the transport's await().
  void release_to_await() SMDIST_RELEASE();

  // Wake the holder, or the progress thread, because there is work in the inbox. For any thread.
  void notify() SMDIST_EXCLUDES(mutex_);
  // Clear the wake-up. For the holder, before it takes the inbox.
  void ack_wakeup() SMDIST_REQUIRES(this) SMDIST_EXCLUDES(mutex_);

  // Counts a caller inside the engine while the object exists, so that the engine is not destroyed.
  class CallerScope final {
   public:
    explicit CallerScope(ProgressLock& progress);
    ~CallerScope();
    CallerScope(const CallerScope&) = delete;
    CallerScope& operator=(const CallerScope&) = delete;

   private:
    ProgressLock& progress_;
  };
  // Block until no caller is inside the engine.
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
  bool is_wakeup_up_ SMDIST_GUARDED_BY(mutex_) = false;  // the wake-up of the transport is set
  bool has_own_work_ SMDIST_GUARDED_BY(mutex_) =
      false;  // the holder itself has put work into the inbox

  // State of the progress thread.
  bool is_resting_ SMDIST_GUARDED_BY(mutex_) = false;
  Clock::time_point checks_at_ SMDIST_GUARDED_BY(mutex_);  // next check of the rest
  Clock::time_point rests_until_
      SMDIST_GUARDED_BY(mutex_);  // end of the rest while the lock is free
  std::condition_variable_any rested_;

  std::vector<Completion*> waiting_
      SMDIST_GUARDED_BY(mutex_);  // completions of callers in wait_turn()
  size_t num_callers_ SMDIST_GUARDED_BY(mutex_) = 0;
  std::condition_variable_any callers_left_;
};

}  // namespace smdist
