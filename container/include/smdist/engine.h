// SPDX-License-Identifier: Apache-2.0
// The all-reduce engine: one per process, shared by all of its groups.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "smdist/announced.h"
#include "smdist/completion.h"
#include "smdist/errors.h"
#include "smdist/operation.h"
#include "smdist/options.h"

namespace smdist {

class Transport;

// Memory of this rank that the other ranks of its host can read where it lies.
struct SharedMemory {
  Span span;                          // empty: there is none
  std::shared_ptr<const void> owner;  // the memory exists at least as long as this object
};

// Runs collectives and messages over numbered groups of ranks.
//
// Order of calls: construct the engine, which opens its listener; exchange the endpoint() of every
// rank by other means, such as a key-value store; then join(), add_group(), any number of submit(),
// and shutdown().
//
// The collectives of one group are numbered from 0 in the order of submit(). Within a group, every
// member must submit the same collectives in the same order. Operations overlap, and may end in any
// order.
//
// One failure ends the engine. Failures are: a rank dies while an operation needs it, a timeout
// expires, or a rank calls abort(). All pending and later operations of all groups then fail with
// the same error on all ranks. If a rank has called shutdown(), only operations that need that rank
// fail.
//
// If ranks call different operations under one number, that operation fails with a UsageError on
// every rank on which it has not ended yet, and the engine works on.
//
// A thread that waits in wait() or submit_and_wait() moves all operations forward itself, one such
// thread at a time, while the engine's own thread sleeps. It calls the `ended` callbacks of any
// operations that end meanwhile, but never a `done` callback.
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

  // Return this rank, from 0, and the number of ranks.
  int rank() const;
  int size() const;

  // Return the address at which other ranks reach this one.
  Endpoint endpoint() const;

  // Return memory of Options::caller_memory_bytes bytes, which begins on a page; empty if this rank
  // shares no memory with others. It is for buffers of operations: other ranks read a buffer in it
  // where it lies, if it is both input and output of an all-reduce among ranks of this host. Such
  // an operation ends when they have read its results.
  SharedMemory shared_memory() const;

  // Start the threads. peers: the endpoints of all ranks in rank order. Connections are made later,
  // when operations first need them.
  void join(std::vector<Endpoint> peers);

  // Add a group. members: engine ranks in the order of their ranks in the group; this rank must be
  // one of them. Adding a group again with the same members is no error: the numbers of its
  // operations continue, even if it was removed in between.
  void add_group(uint32_t id, std::vector<int> members);

  // Remove a group. Removing an unknown group does nothing. Throws UsageError if operations of the
  // group are pending.
  void remove_group(uint32_t id);

  // Start an operation, and return its number among the collectives of the group, or among its
  // sends and receives. Throws UsageError if the arguments are wrong, or if it is called before
  // join() or after shutdown(). Every other error is passed to the callbacks `ended` and `done`,
  // including the error of an engine that has failed before.
  uint64_t submit(uint32_t group, Operation operation);

  // Return how many calls of collectives this rank has submitted to a group: the number of the
  // next.
  uint64_t num_submitted(uint32_t group) const;

  // Call `found` once, as soon as a peer has submitted a collective that this rank has not
  // submitted yet. sequence: its number in the group; part: its number within its call. `found` is
  // dropped if this rank submits the collective first. Throws UsageError before join() and after
  // shutdown().
  void on_announced(uint32_t group, uint64_t sequence, uint32_t part, OnAnnounced found);

  // Throw UsageError if the arguments of an operation are wrong for this rank of a group of `size`
  // ranks. submit() checks the same.
  static void check_operation(const Operation& operation, int rank, int size);

  // Block until the completion is done, or until the given time, and move operations forward
  // meanwhile. Returns whether the completion is done. Only operations of this engine may complete
  // it.
  bool wait(Completion& completion,
            Completion::Clock::time_point until = Completion::Clock::time_point::max());

  // Submit an operation and wait for its end; faster than submit() followed by wait(). The
  // completion must count this operation alone, and the operation's `ended` must call complete().
  uint64_t submit_and_wait(uint32_t group, Operation operation, Completion& completion);

  // Use this tuning for operations that are submitted from now on. All ranks must pass the same
  // tuning between the same two operations, and no operation may be pending. is_last: later calls
  // use no more lanes than this one, so that peers that open further ones are rejected.
  void tune(Tuning tuning, bool is_last = false);

  // Fail every pending and later operation with `reason`, here and on all ranks. If the engine has
  // failed already, its first error stays. `details` are sent together with the reason: the errors
  // of all ranks have them in Fault::details. Throws UsageError if they are longer than
  // kMaxDetailsBytes.
  void abort(const std::string& reason, const std::string& details = {});

  // Notify the other ranks that this rank leaves, fail all operations that are pending here, and
  // end the threads. Does not wait for operations to complete: wait for their `done` first. A
  // second call does nothing.
  void shutdown();

  // Return the error that ended the engine; null if there is none.
  std::exception_ptr failure() const;

  // Return the error of the operation that ended last; null if it succeeded. After a failure of the
  // engine, the error that ended the engine.
  std::exception_ptr last_error() const;

  // Return the last 1,000 operations of this rank as JSON, with their groups and the engine's
  // fault; docs/debugging.md describes it. reason: why the caller needs it. Waits for no operation.
  std::string history(const std::string& reason) const;

  // Return whether join() has been called, and shutdown() has not.
  bool is_running() const;

  // Close a forked child's copies of the connections. Call in the child, right after fork().
  // Afterwards the child must neither use nor destroy the engine.
  void close_in_child() noexcept;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace smdist
