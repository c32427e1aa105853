// SPDX-License-Identifier: Apache-2.0
// The threads that tell callers how their operations ended.
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

// A caller's callback may be slow or take locks of its own, so it must not run
// on the thread that moves the bytes. Callbacks run one at a time, in order, as long as each ends
// soon. One that waits for another operation would wait for ever behind itself:
// after 20 ms a second thread, and if need be a third, goes on with the others.
//
// Thread safety: push() may be called from any thread; start() and finish() once
// each, from any; finish() also from a callback.
class Completions final {
 public:
  using Done = std::function<void(std::exception_ptr)>;

  void start();
  void push(Operation& operation, std::exception_ptr error);
  void finish();  // runs what is queued, then ends the threads

 private:
  using Clock = std::chrono::steady_clock;

  struct Completion {
    Done done;
    std::exception_ptr error;
  };
  // Lives on while the callback that destroys the engine returns.
  struct State {
    Mutex mutex;
    std::condition_variable_any changed;
    std::deque<Completion> queue SMDIST_GUARDED_BY(mutex);
    std::vector<std::thread> threads SMDIST_GUARDED_BY(mutex);
    size_t num_running SMDIST_GUARDED_BY(mutex) = 0;
    Clock::time_point latest_start SMDIST_GUARDED_BY(mutex);
    bool is_finished SMDIST_GUARDED_BY(mutex) = false;
  };
  static void run(const std::shared_ptr<State>& state);
  static std::optional<Completion> next(const std::shared_ptr<State>& state);
  static void call(Completion completion);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace smdist
