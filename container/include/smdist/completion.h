// SPDX-License-Identifier: Apache-2.0
// Waiting for the end of operations.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>

namespace smdist {

// Counts down as operations end. Each operation calls complete() from its Operation::ended, and
// the completion is done when all have. Engine::wait() waits for it and makes progress meanwhile;
// wait_until() only waits.
//
// Thread safety: all methods may be called from any thread.
class Completion final {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Completion(size_t operations);
  ~Completion();
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  // One operation has ended; null means success. The first error is kept.
  void complete(const std::exception_ptr& error);

  bool is_done() const;
  // The first error so far; null if there is none.
  std::exception_ptr error() const;

  // Block until it is done, or until the given time; returns whether it is done.
  bool wait_until(Clock::time_point until) const;

  // For a thread that waits for something else at the same time. notify() ends every wait_until()
  // that was given a smaller number of notifications, although the completion is not done.
  uint64_t num_notifications() const;
  void notify();
  bool wait_until(Clock::time_point until, uint64_t known_notifications) const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace smdist
