// SPDX-License-Identifier: Apache-2.0
// Error of an operation that failed after wait() had returned.
#pragma once

#include <exception>
#include <mutex>
#include <utility>

namespace smdist::torch_binding {

// The first error of operations that failed after their wait() had returned, until a later call
// raises it.
//
// Thread safety: all methods may be called from any thread.
class LateError final {
 public:
  void store(const std::exception_ptr& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!error_) error_ = error;
  }

  // Return the error, which is then removed; null if there is none.
  std::exception_ptr take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(error_, nullptr);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;  // guarded by mutex_
};

}  // namespace smdist::torch_binding
