// SPDX-License-Identifier: Apache-2.0
// One operation, as one rank describes it.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <vector>

#include "smdist/collective.h"
#include "smdist/dtype.h"
#include "smdist/reduce_op.h"

namespace smdist {

// Memory that belongs to the caller. `data` may be null if `bytes` is 0.
struct Span {
  void* data = nullptr;
  size_t bytes = 0;
};

// Buffers of each kind of operation, in a group of N ranks. "One or N" is either one buffer with N
// equal chunks in rank order, or N buffers, one per rank.
//
//   kind            inputs                        outputs
//   all_reduce      one                           one, as long
//   reduce_scatter  one or N                      one chunk
//   all_gather      one chunk                     one or N
//   broadcast       root: one; others: any        one; root: one (as long) or none
//   reduce          one                           root: one, as long; others: any
//   gather          one chunk                     root: one or N; others: any
//   scatter         root: one or N; others: any   one chunk
//   all_to_all      one or N (any sizes)          one or N (any sizes)
//   barrier         none                          none
//   send            one                           none
//   receive         none                          one
//
// "Any" buffers are neither read nor written. Inputs are not written, except
// where they are an output too: an output may be exactly the input (all_reduce,
// broadcast, reduce), or the rank's own chunk may lie in both (reduce_scatter,
// all_gather, gather, scatter). Any other overlap is refused.
//
// The memory must stay valid, and inputs must keep their values, until `ended` or `done` is called.
// Afterwards the engine does not touch the memory again, even if the operation failed. After a
// failure the contents of the outputs are undefined.
//
// Sends and receives of one sender, receiver and `tag` match in the order in which they were
// submitted. A send is complete when its receive has been posted and the data have left.
constexpr int kAnyRank = -1;

struct Operation {
  Collective kind = Collective::kBarrier;
  Dtype dtype = Dtype::kUint8;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;  // every input is multiplied by it first; floating dtypes only
  int root = 0;      // rank in the group
  int peer = 0;      // rank in the group: a send's receiver, a receive's sender or kAnyRank
  uint32_t tag = 0;  // of a send or receive

  // A hash by which callers describe what the buffers mean. If it differs among the ranks, the
  // operation fails, like any other mismatch. Not used by sends and receives.
  uint64_t layout = 0;
  std::vector<Span> inputs;
  std::vector<Span> outputs;
  int* source = nullptr;  // receive: the sender's rank in the group is written here; may be null

  // Time from submit() on; must be above zero. When it is over, the engine is aborted on all ranks
  // with a TimeoutError that names the ranks which the operation waits for.
  std::chrono::milliseconds timeout{};

  // Called exactly once, on a thread for callbacks; null means success. Must not throw. It is
  // destroyed on that thread. May be empty if `ended` is not.
  std::function<void(std::exception_ptr)> done;

  // Called before `done`, as soon as the operation has ended, on the thread that makes progress,
  // which may be a caller's. It must be short, as Completion::complete() is, and is destroyed on
  // that thread. May be empty.
  std::function<void(const std::exception_ptr&)> ended;
};

}  // namespace smdist
