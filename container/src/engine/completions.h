// SPDX-License-Identifier: Apache-2.0
// The thread that tells callers how their operations ended.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace smdist {

// A caller's callback may be slow or take locks of its own, so it must not run
// on the I/O thread.
//
// Thread safety: push() may be called from any thread; start() and finish() once
// each, from any.
class Completions final {
 public:
  using Done = std::function<void(std::exception_ptr)>;

  void start();
  void push(Done done, std::exception_ptr error) SMDIST_EXCLUDES(mutex_);
  void finish() SMDIST_EXCLUDES(mutex_);  // runs what is queued, then ends the thread

 private:
  struct Completion {
    Done done;
    std::exception_ptr error;
  };
  void run() SMDIST_EXCLUDES(mutex_);

  std::thread thread_;

  Mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Completion> queue_ SMDIST_GUARDED_BY(mutex_);
  bool is_finished_ SMDIST_GUARDED_BY(mutex_) = false;
};

}  // namespace smdist
