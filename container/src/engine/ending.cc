// SPDX-License-Identifier: Apache-2.0
#include "smdist/ending.h"

#include <condition_variable>

#include "base/mutex.h"

namespace smdist {

// All that anybody waits for is guarded by the mutex under which it changes.
struct Ending::State {
  Mutex mutex;
  std::condition_variable_any changed;
  size_t num_open SMDIST_GUARDED_BY(mutex) = 0;
  uint64_t num_calls SMDIST_GUARDED_BY(mutex) = 0;
  std::exception_ptr error SMDIST_GUARDED_BY(mutex);
};

Ending::Ending(size_t operations) : state_(std::make_unique<State>()) {
  MutexLock lock(state_->mutex);
  state_->num_open = operations;
}

Ending::~Ending() = default;

void Ending::end(const std::exception_ptr& error) {
  MutexLock lock(state_->mutex);
  if (!state_->error) state_->error = error;
  if (--state_->num_open == 0) state_->changed.notify_all();
}

bool Ending::is_over() const {
  MutexLock lock(state_->mutex);
  return state_->num_open == 0;
}

std::exception_ptr Ending::error() const {
  MutexLock lock(state_->mutex);
  return state_->error;
}

uint64_t Ending::num_calls() const {
  MutexLock lock(state_->mutex);
  return state_->num_calls;
}

void Ending::call() {
  MutexLock lock(state_->mutex);
  ++state_->num_calls;
  state_->changed.notify_all();
}

bool Ending::await(Clock::time_point until) const {
  while (!await(until, num_calls()) && Clock::now() < until) {
  }
  return is_over();
}

bool Ending::await(Clock::time_point until, uint64_t known_calls) const {
  MutexLock lock(state_->mutex);
  while (state_->num_open > 0 && state_->num_calls == known_calls && Clock::now() < until) {
    if (until == Clock::time_point::max()) {
      state_->changed.wait(state_->mutex);
    } else {
      state_->changed.wait_until(state_->mutex, until);
    }
  }
  return state_->num_open == 0;
}

}  // namespace smdist
