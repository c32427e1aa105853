// SPDX-License-Identifier: Apache-2.0
// The all-reduce engine: one per process, shared by all of its groups.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "smdist/ending.h"
#include "smdist/errors.h"
#include "smdist/operation.h"
#include "smdist/options.h"

namespace smdist {

class Transport;

// Runs collectives and messages over numbered groups of ranks.
//
// Life: construct (opens the listener), tell every rank's endpoint() to all
// ranks by other means, join(), add_group(), submit()..., shutdown().
//
// The collectives of one group are numbered from 0 in the order of submit(); every
// member must submit the same ones in the same order, each group by itself.
// Operations overlap, and may complete in any order.
//
// One failure ends the engine: a rank that dies while an operation needs it, a
// timeout, ranks that call different things, or abort(). All pending and later
// operations of all groups then fail with the same error on all ranks. A rank
// that shut down in order is an error only for an operation that needs it.
//
// Callers who wait by wait() or run() move the engine's bytes themselves meanwhile, one at
// a time, and the engine's own thread rests; they call every operation's `ended`, but
// nobody's `done`.
//
// Thread safety: every method may be called from any thread, except from `done`
// callbacks, which may not call join(), and from `ended`, which may call none.
// shutdown() and the destructor take less than a second, if no `done` callback blocks.
class Engine final {
 public:
  // Opens the listener. Throws UsageError, SystemError.
  explicit Engine(Options options);
  // With a transport of the caller's choice, for tests.
  Engine(Options options, std::unique_ptr<Transport> transport);
  ~Engine();

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const;
  int size() const;

  // Where other ranks reach this one.
  Endpoint endpoint() const;

  // All ranks' endpoints in rank order; starts the threads. Connections are
  // made later, when operations first need them.
  void join(std::vector<Endpoint> peers);

  // Members are engine ranks, in the order of their ranks in the group, this
  // rank among them. Adding a group again is no error if the members are the
  // same; its operations go on counting, also if it was removed in between.
  void add_group(uint32_t id, std::vector<int> members);

  // Throws UsageError if operations of the group are still on their way.
  // Removing an unknown group does nothing.
  void remove_group(uint32_t id);

  // Starts an operation and returns its number among the collectives of the group,
  // or among its sends and receives. Throws UsageError if this call
  // is wrong by itself, or comes before join() or after shutdown(); every other
  // error goes to `done`, also that of an engine which failed before.
  uint64_t submit(uint32_t group, Operation operation);

  // Blocks until `ending` is over, which operations of this engine end, or until then;
  // returns whether it is over.
  bool wait(Ending& ending, Ending::Clock::time_point until = Ending::Clock::time_point::max());

  // submit(), then wait(): less work than both. The operation's `ended` must end `ending`,
  // and all of it.
  uint64_t run(uint32_t group, Operation operation, Ending& ending);

  // How operations that are submitted from now on are done. All ranks must say the
  // same between the same two operations, and no operation may be on its way.
  void tune(Tuning tuning);

  // Fails every pending and later operation with `reason`, here and on all
  // ranks. The first failure wins.
  void abort(const std::string& reason);

  // Says goodbye to the other ranks, fails what is pending here and ends the
  // threads. Idempotent. Does not wait for operations: wait for `done` first.
  void shutdown();

  // What ended the engine, null while nothing has.
  std::exception_ptr failure() const;

  // Between join() and shutdown().
  bool is_running() const;

  // For a forked child, right after fork(): closes its copies of the connections.
  // The child must then neither use nor destroy the engine.
  void close_in_child() noexcept;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace smdist
