// SPDX-License-Identifier: Apache-2.0
// Whose turn it is to move the bytes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "smdist/ending.h"
#include "smdist/transport.h"

namespace smdist {

// One thread at a time has the lead: it alone touches the conductor and the transport. It is
// the engine's own thread, or a caller who would only wait otherwise and saves two hand-overs
// from thread to thread.
//
// Why no wake-up is lost. Whatever somebody has to do for the engine is one of: something
// left for it (by another thread, who then calls wake()), something that comes from the
// network, or something whose time has come.
//
// 1. Who takes the lead knows nothing yet: it hears, then takes what was left, then moves
//    bytes, and only then works out how long it may sleep. No time is carried over from one
//    holder to the next.
// 2. What was left: wake() comes after it was left, and hear() before it is taken. So what
//    hear() forgets is taken, and what comes later is woken for again. The transport's
//    wake-up stays up until hear(), which only the holder calls: a sleeper who is late for it
//    finds it up, and who takes it down is responsible from then on.
// 3. A holder who sleeps keeps the lead. It sleeps in the transport, which ends with any of
//    the three.
// 4. The engine's own thread sleeps without the lead, in one of two ways. In the transport it is
//    woken as in 3, but for times that became known later. At rest, on the condition variable,
//    it is woken by nothing but Lead, and says here until when it rests at most (looks_at_).
// 5. So whoever gives up the lead while anything is on its way, or left, wakes that thread, in
//    whichever way it sleeps; it takes the lead as in 1. If nothing is, only the network
//    has news, which nobody waits for: it may rest, but never beyond kRest after that.
// 6. Callers who wait while another leads are woken by their own operations' end. That they
//    are called when the lead is free is for speed: the engine's thread has been woken as well.
//
// Each of these states changes under mutex_, and is waited for under it.
//
// Thread safety: as the methods say.
class SMDIST_CAPABILITY("lead") Lead final {
 public:
  using Clock = std::chrono::steady_clock;

  // How long the engine's thread leaves the network alone when nothing is on its way and
  // callers lead now and then.
  static constexpr std::chrono::milliseconds kRest{10};

  explicit Lead(Transport& transport) : transport_(transport) {}

  // A caller may lead between open() and close(). Who leads at close() goes on.
  void open() SMDIST_EXCLUDES(mutex_);
  void close() SMDIST_EXCLUDES(mutex_);

  // For callers. Never blocks for long: false if somebody else leads.
  bool try_take() SMDIST_TRY_ACQUIRE(true);
  // is_quiet: nothing is on its way here, and nothing has a time.
  void give_up(bool is_quiet) SMDIST_RELEASE();
  // Blocks until the lead may be free, until the end, or until then.
  void stand_by(Ending& ending, Clock::time_point until) SMDIST_EXCLUDES(mutex_);

  // For the engine's own thread: takes the lead when there may be something to do; gives it
  // up to sleep in the transport.
  void take_back() SMDIST_ACQUIRE();
  void watch() SMDIST_RELEASE();

  // Something was left for whoever leads. For any thread.
  void wake() SMDIST_EXCLUDES(mutex_);
  // For the holder, before it takes what was left.
  void hear() SMDIST_REQUIRES(this) SMDIST_EXCLUDES(mutex_);

  // A caller is inside the engine, which may not be destroyed meanwhile.
  class Visit final {
   public:
    explicit Visit(Lead& lead);
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    Lead& lead_;
  };
  void await_visitors() SMDIST_EXCLUDES(mutex_);

 private:
  void hold() SMDIST_REQUIRES(mutex_);
  bool hold_if_free() SMDIST_EXCLUDES(mutex_);
  void hold_when_due() SMDIST_EXCLUDES(mutex_);
  bool is_due() const SMDIST_REQUIRES(mutex_);
  void rest() SMDIST_REQUIRES(mutex_);
  void let_go(bool is_quiet) SMDIST_EXCLUDES(mutex_);
  void let_go_to_watch() SMDIST_EXCLUDES(mutex_);
  void free() SMDIST_REQUIRES(mutex_);
  void raise() SMDIST_REQUIRES(mutex_);

  Transport& transport_;
  Mutex mutex_;
  bool is_open_ SMDIST_GUARDED_BY(mutex_) = false;
  bool is_held_ SMDIST_GUARDED_BY(mutex_) = false;
  std::thread::id holder_ SMDIST_GUARDED_BY(mutex_);
  uint64_t num_turns_ SMDIST_GUARDED_BY(mutex_) = 0;  // that the lead was taken
  bool is_raised_ SMDIST_GUARDED_BY(mutex_) = false;  // whether the transport's wake-up is up
  bool is_owed_ SMDIST_GUARDED_BY(mutex_) = false;    // the holder left something for itself

  // Of the engine's own thread.
  bool is_resting_ SMDIST_GUARDED_BY(mutex_) = false;
  Clock::time_point looks_at_ SMDIST_GUARDED_BY(mutex_);     // by itself, if it rests
  Clock::time_point rests_until_ SMDIST_GUARDED_BY(mutex_);  // at most, unless somebody leads
  std::condition_variable_any rested_;

  std::vector<Ending*> standing_by_ SMDIST_GUARDED_BY(mutex_);
  size_t num_visitors_ SMDIST_GUARDED_BY(mutex_) = 0;
  std::condition_variable_any left_;
};

}  // namespace smdist
