// SPDX-License-Identifier: Apache-2.0
// One operation, as one rank asks for it.
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

// What each collective expects of N ranks. "One or N": either one buffer with N
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
// The memory must live, and an input keep its value, until `ended` or `done` was called;
// afterwards the engine never touches it again, also if the operation failed.
// After a failure the outputs hold anything.
// Sends and receives meet in the order in which they were submitted, those of each
// sender, receiver and `tag` for themselves. A send is complete when the receiver
// has asked for it and the data have left.
constexpr int kAnyRank = -1;

struct Operation {
  Collective kind = Collective::kBarrier;
  Dtype dtype = Dtype::kUint8;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;  // every contribution is multiplied by it first; floating dtypes only
  int root = 0;      // rank in the group
  int peer = 0;      // rank in the group: a send's receiver, a receive's sender or kAnyRank
  uint32_t tag = 0;  // of a send or receive

  // What the buffers mean, as a hash of their caller's: ranks that say different numbers
  // called different things. Not of a send or a receive.
  uint64_t layout = 0;
  std::vector<Span> inputs;
  std::vector<Span> outputs;
  int* source = nullptr;  // receive: where the sender's rank in the group is written, or null

  // From submit() on. Must be above zero. When it is over, the whole engine is
  // aborted, on all ranks, with a TimeoutError naming who did not contribute.
  std::chrono::milliseconds timeout{};

  // Called exactly once, on a completion thread; null means success. Must not
  // throw. It is destroyed on that thread. May be empty if `ended` is not.
  std::function<void(std::exception_ptr)> done;

  // Called before, as soon as it is so, on the thread that moves the bytes, which may be
  // a caller's: may only wake who waits, as by Ending::end(), and is destroyed there.
  // May be empty.
  std::function<void(const std::exception_ptr&)> ended;
};

}  // namespace smdist
