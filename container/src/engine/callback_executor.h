// SPDX-License-Identifier: Apache-2.0
// Threads that run the `done` callbacks of operations.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "smdist/operation.h"

namespace smdist {

// Runs callbacks one at a time, in the order in which their operations ended. A callback may be
// slow or lock mutexes, so it does not run on the thread that moves the data. If a callback runs
// for more than 20 ms, another thread continues with the next ones, because it may wait for an
// operation whose own callback is queued behind it.
//
// Thread safety: push() may be called from any thread; start() and finish() once each, from any
// thread; finish() also from a callback.
class CallbackExecutor final {
 public:
  using Done = std::function<void(std::exception_ptr)>;

  // Start the threads.
  void start();
  // Call the `ended` of an operation now, and queue its `done` for a thread of this class. error:
  // null if the operation succeeded.
  void push(Operation& operation, std::exception_ptr error);
  // Run the queued callbacks, then end the threads.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  struct Callback {
    Done done;
    std::exception_ptr error;
  };
  // Queue of callbacks. The threads share its ownership, because a callback may destroy the engine
  // and this object, and its thread continues after that.
  struct SharedQueue {
    Mutex mutex;
    std::condition_variable_any changed;
    std::deque<Callback> queue SMDIST_GUARDED_BY(mutex);
    std::vector<std::thread> threads SMDIST_GUARDED_BY(mutex);
    size_t num_running SMDIST_GUARDED_BY(mutex) = 0;
    Clock::time_point latest_start SMDIST_GUARDED_BY(mutex);
    bool is_finished SMDIST_GUARDED_BY(mutex) = false;
  };
  static void run(const std::shared_ptr<SharedQueue>& state);
  static std::optional<Callback> next(const std::shared_ptr<SharedQueue>& state);
  static void call(Callback callback);

  const std::shared_ptr<SharedQueue> state_ = std::make_shared<SharedQueue>();
};

}  // namespace smdist
