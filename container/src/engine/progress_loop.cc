// SPDX-License-Identifier: Apache-2.0
// The progress loop, on the engine's own thread and on threads of callers that wait.
#include <algorithm>

#include "engine/batch_scheduling.h"
#include "engine/default_floats.h"
#include "engine/engine_impl.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDisconnectTime{300};
constexpr milliseconds kPauseAfterError{100};

}  // namespace

bool Engine::Impl::wait(Completion& completion, Clock::time_point until) {
  const ProgressLock::CallerScope scope(progress_lock_);
  while (!completion.is_done() && Clock::now() < until) {
    if (progress_lock_.try_acquire()) {
      progress_until(completion, until);
      progress_lock_.release(is_quiet());
    } else {
      progress_lock_.wait_turn(completion, until);
    }
  }
  return completion.is_done();
}

// Submits and waits. If the caller can acquire the lock first, the progress thread need not be
// woken.
uint64_t Engine::Impl::submit_and_wait(uint32_t group, Operation operation,
                                       Completion& completion) {
  const ProgressLock::CallerScope scope(progress_lock_);
  uint64_t sequence = 0;
  if (progress_lock_.try_acquire()) {
    try {
      sequence = submit(group, std::move(operation));
    } catch (...) {
      progress_lock_.release(false);
      throw;
    }
    progress_until(completion, Clock::time_point::max());
    progress_lock_.release(is_quiet());
  } else {
    sequence = submit(group, std::move(operation));
  }
  wait(completion, Clock::time_point::max());
  return sequence;
}

void Engine::Impl::run_progress_thread() {
  const DefaultFloats floats;
  SpinPolicy spin;
  while (true) {
    progress_lock_.acquire_when_due();
    if (!make_progress()) break;
    const milliseconds limit = max_wait();
    progress_lock_.release_to_await();
    transport_->await(limit, spin);
  }
  disconnect();
  progress_lock_.release_to_await();  // the lock is closed: no caller acquires it any more
}

// Makes progress on a caller's thread, which holds the lock, until the completion is done or until
// the given time.
void Engine::Impl::progress_until(const Completion& completion, Clock::time_point until) {
  const DefaultFloats floats;
  const BatchScheduling scheduling(options_.pause.count() == 0);
  while (make_progress() && !completion.is_done()) {
    const Clock::duration left = until - Clock::now();
    if (left.count() <= 0) return;
    const auto rounded = std::chrono::duration_cast<milliseconds>(left) + milliseconds(1);
    transport_->await_before_poll(std::min(max_wait(), rounded), caller_spin_);
  }
}

milliseconds Engine::Impl::max_wait() {
  if (progress_.is_busy()) return milliseconds(0);
  return transport_->max_await(progress_.time_until_deadline());
}

bool Engine::Impl::is_quiet() { return progress_.is_quiet() && transport_->is_quiet(); }

// Does all work that is possible without waiting. Returns false if the engine has to end.
bool Engine::Impl::make_progress() {
  try {
    return make_progress_or_throw();
  } catch (const std::exception& error) {
    progress_.abort({FaultKind::kSystem, options_.rank, error.what(), {}, {}});
    std::this_thread::sleep_for(kPauseAfterError);  // the error may occur again at once
    return true;
  }
}

bool Engine::Impl::make_progress_or_throw() {
  progress_lock_.ack_wakeup();  // before the inbox is taken: see ProgressLock
  Inbox inbox = take_inbox();
  if (inbox.tuning) transport_->tune(*inbox.tuning, inbox.is_last_tuning);
  for (Submission& submission : inbox.submissions) progress_.post(std::move(submission));
  for (auto& [id, found] : inbox.watched) progress_.watch(id, std::move(found));
  for (const uint32_t group : inbox.removed_groups) progress_.forget_group(group);
  if (inbox.fault) progress_.abort(*inbox.fault);
  if (inbox.is_ended) return false;
  progress_.check_deadlines();
  transport_->poll(milliseconds(0));
  progress_.advance_sums();
  return true;
}

void Engine::Impl::disconnect() {
  try {
    deliver_fault();
    progress_.leave();
    transport_->close(kDisconnectTime);
  } catch (const std::exception& error) {
    if (options_.log)
      options_.log(std::string("disconnecting from the other ranks failed: ") + error.what());
  }
}

// Waits for peers that have not connected yet, so that they receive the fault. Otherwise they
// would only see that this rank closes the connection, and report this rank instead of the culprit.
void Engine::Impl::deliver_fault() {
  const Clock::time_point end = Clock::now() + kDisconnectTime;
  while (progress_.has_uninformed_peers() && Clock::now() < end) {
    transport_->poll(milliseconds(20));
  }
}

Engine::Impl::Inbox Engine::Impl::take_inbox() {
  MutexLock lock(mutex_);
  const bool is_ended = inbox_.is_ended;
  Inbox taken = std::exchange(inbox_, {});
  inbox_.is_ended = is_ended;
  return taken;
}

}  // namespace smdist
