// SPDX-License-Identifier: Apache-2.0
// Works whose wait() has returned before they have ended.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

namespace smdist::torch_binding {

// Counts the works for which streams wait, and keeps the first error of those that fail, until a
// later call raises it.
//
// Thread safety: all methods may be called from any thread.
class AwaitedWorks final {
 public:
  void begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
  }

  // Record that a work has ended. error: null if it succeeded.
  void end(const std::exception_ptr& error) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      --count_;
      if (error && !error_) error_ = error;
    }
    changed_.notify_all();
  }

  // Keep the error of a work that had ended.
  void store(const std::exception_ptr& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!error_) error_ = error;
  }

  // Block until no stream waits for a work that has not ended.
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return count_ == 0; });
  }

  // Return the error, which is then removed; null if there is none.
  std::exception_ptr take_error() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(error_, nullptr);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t count_ = 0;  // guarded by mutex_, as is the next one
  std::exception_ptr error_;
};

}  // namespace smdist::torch_binding
