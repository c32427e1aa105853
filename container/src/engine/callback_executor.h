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

// A callback may be slow or take locks of its own, so it must not run on the thread that moves the
// bytes. Callbacks run one at a time, in the order in which operations ended. But a callback that
// waits for another operation would block the callback of that operation for ever: if one runs
// for more than 20 ms, another thread goes on with the others.
//
// Thread safety: push() may be called from any thread; start() and finish() once each, from any
// thread; finish() also from a callback.
class CallbackExecutor final {
 public:
  using Done = std::function<void(std::exception_ptr)>;

  void start();
  // An operation has ended: calls its `ended` here, and its `done` on a thread of this class.
  void push(Operation& operation, std::exception_ptr error);
  // Run what is queued, then end the threads.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  struct Callback {
    Done done;
    std::exception_ptr error;
  };
  // Shared with the threads: a callback may destroy the engine, and returns after that.
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
