// SPDX-License-Identifier: Apache-2.0
#include "smdist/completion.h"

#include <condition_variable>

#include "base/mutex.h"

namespace smdist {

// State of a completion, which changes under the mutex.
struct Completion::State {
  Mutex mutex;
  std::condition_variable_any changed;
  size_t num_open SMDIST_GUARDED_BY(mutex) = 0;
  uint64_t num_notifications SMDIST_GUARDED_BY(mutex) = 0;
  std::exception_ptr error SMDIST_GUARDED_BY(mutex);
};

Completion::Completion(size_t operations) : state_(std::make_unique<State>()) {
  MutexLock lock(state_->mutex);
  state_->num_open = operations;
}

Completion::~Completion() = default;

void Completion::complete(const std::exception_ptr& error) {
  MutexLock lock(state_->mutex);
  if (!state_->error) state_->error = error;
  if (--state_->num_open == 0) state_->changed.notify_all();
}

bool Completion::is_done() const {
  MutexLock lock(state_->mutex);
  return state_->num_open == 0;
}

std::exception_ptr Completion::error() const {
  MutexLock lock(state_->mutex);
  return state_->error;
}

uint64_t Completion::num_notifications() const {
  MutexLock lock(state_->mutex);
  return state_->num_notifications;
}

void Completion::notify() {
  MutexLock lock(state_->mutex);
  ++state_->num_notifications;
  state_->changed.notify_all();
}

bool Completion::wait_until(Clock::time_point until) const {
  while (!wait_until(until, num_notifications()) && Clock::now() < until) {
  }
  return is_done();
}

bool Completion::wait_until(Clock::time_point until, uint64_t known_notifications) const {
  MutexLock lock(state_->mutex);
  while (state_->num_open > 0 && state_->num_notifications == known_notifications &&
         Clock::now() < until) {
    if (until == Clock::time_point::max()) {
      state_->changed.wait(state_->mutex);
    } else {
      state_->changed.wait_until(state_->mutex, until);
    }
  }
  return state_->num_open == 0;
}

}  // namespace smdist
