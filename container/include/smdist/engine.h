// SPDX-License-Identifier: Apache-2.0
// The all-reduce engine: one per process, shared by all of its groups.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "smdist/completion.h"
#include "smdist/errors.h"
#include "smdist/operation.h"
#include "smdist/options.h"

namespace smdist {

class Transport;

// Runs collectives and messages over numbered groups of ranks.
//
// Life: construct (opens the listener), exchange the endpoint() of every rank by other means,
// join(), add_group(), submit()..., shutdown().
//
// The collectives of one group are numbered from 0 in the order of submit(). Within a group, every
// member must submit the same collectives in the same order. Operations overlap, and may end in
// any order.
//
// One failure ends the engine: a rank that dies while an operation needs it, a timeout, ranks that
// call different things, or abort(). All pending and later operations of all groups then fail with
// the same error on all ranks. If a rank has shut its engine down in order, only operations that
// need it fail.
//
// Callers in wait() or submit_and_wait() make progress themselves, one at a time, while the
// engine's own thread rests. They call the `ended` of every operation, but never a `done`.
//
// Thread safety: every method may be called from any thread, with two exceptions: a `done` callback
// may not call join(), and an `ended` callback may call no method at all. shutdown() and the
// destructor take less than a second, if no `done` callback blocks.
class Engine final {
 public:
  // Opens the listener. Throws UsageError, SystemError.
  explicit Engine(Options options);
  // Uses the given transport; for tests.
  Engine(Options options, std::unique_ptr<Transport> transport);
  ~Engine();

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const;
  int size() const;

  // The address at which other ranks reach this one.
  Endpoint endpoint() const;

  // Start the threads. peers: the endpoints of all ranks in rank order. Connections are made later,
  // when operations first need them.
  void join(std::vector<Endpoint> peers);

  // Add a group. members: engine ranks in the order of their ranks in the group; this rank must be
  // one of them. Adding a group again with the same members is no error, and its operations are
  // numbered on, even if it was removed in between.
  void add_group(uint32_t id, std::vector<int> members);

  // Throws UsageError if operations of the group are pending. Removing an unknown group does
  // nothing.
  void remove_group(uint32_t id);

  // Start an operation, and return its number among the collectives of the group, or among its
  // sends and receives. Throws UsageError if this call is wrong in itself, or comes before join()
  // or after shutdown(). Every other error goes to `ended` and `done`, including the error of an
  // engine that failed before.
  uint64_t submit(uint32_t group, Operation operation);

  // Block until the completion is done, or until the given time, and make progress meanwhile.
  // Returns whether it is done. Only operations of this engine may complete it.
  bool wait(Completion& completion,
            Completion::Clock::time_point until = Completion::Clock::time_point::max());

  // Submit an operation and wait for it, with less work than by submit() and wait(). The completion
  // must be for this operation alone, whose `ended` completes it.
  uint64_t submit_and_wait(uint32_t group, Operation operation, Completion& completion);

  // Tune operations that are submitted from now on. All ranks must pass the same tuning between the
  // same two operations, and no operation may be pending.
  void tune(Tuning tuning);

  // Fail every pending and later operation with `reason`, here and on all ranks. If the engine has
  // failed already, its first error stays. `details` are sent beside the reason, in the Fault that
  // all errors carry. Throws UsageError if they are longer than kMaxDetailsBytes.
  void abort(const std::string& reason, const std::string& details = {});

  // Leave the other ranks in order, fail what is pending here, and end the threads. Does not wait
  // for operations: wait for `done` first. A second call does nothing.
  void shutdown();

  // The error that ended the engine; null if none has.
  std::exception_ptr failure() const;

  // Return whether join() has been called, and shutdown() has not.
  bool is_running() const;

  // For a forked child, right after fork(): close its copies of the connections. Afterwards the
  // child must neither use nor destroy the engine.
  void close_in_child() noexcept;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace smdist
