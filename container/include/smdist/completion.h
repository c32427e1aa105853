// SPDX-License-Identifier: Apache-2.0
// Count of unfinished operations that a thread can wait for.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>

namespace smdist {

// Counts operations that have not ended yet. Each operation calls complete() once, from its
// callback Operation::ended; after the last call the completion is done. Engine::wait() waits for
// that and moves operations forward meanwhile; wait_until() only waits.
//
// Thread safety: all methods may be called from any thread.
class Completion final {
 public:
  using Clock = std::chrono::steady_clock;

  // operations: number of calls of complete() until the completion is done.
  explicit Completion(size_t operations);
  ~Completion();
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  // Record that one operation has ended. error: null if it succeeded. Only the first error is kept.
  void complete(const std::exception_ptr& error);

  // Return whether all operations have ended.
  bool is_done() const;
  // Return the first error so far; null if there is none.
  std::exception_ptr error() const;

  // Block until all operations have ended, or until the given time. Returns whether all have ended.
  bool wait_until(Clock::time_point until) const;

  // Return how often notify() has been called.
  uint64_t num_notifications() const;
  // End the waits of all threads early, so that they can look for other work.
  void notify();
  // Block like the other wait_until(), but return also as soon as num_notifications() differs from
  // `known_notifications`. Returns whether all operations have ended.
  bool wait_until(Clock::time_point until, uint64_t known_notifications) const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace smdist
