// SPDX-License-Identifier: Apache-2.0
// The end of operations, for those who wait for it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>

namespace smdist {

// Over once so many operations have said so, each by a call of end() from its
// Operation::ended. Engine::wait() waits for it and lends a hand; await() only waits.
//
// Thread safety: all methods may be called from any thread.
class Ending final {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Ending(size_t operations);
  ~Ending();
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

  // One operation has ended; null means success. The first error is kept.
  void end(const std::exception_ptr& error);

  bool is_over() const;
  std::exception_ptr error() const;  // of those that have ended; null: there is none

  // Blocks until all is over, or until then; returns whether it is over.
  bool await(Clock::time_point until) const;

  // For who waits for two things at once: call() ends every await() that was given an
  // earlier number of calls, although nothing is over.
  uint64_t num_calls() const;
  void call();
  bool await(Clock::time_point until, uint64_t known_calls) const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace smdist
