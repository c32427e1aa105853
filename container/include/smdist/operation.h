// SPDX-License-Identifier: Apache-2.0
// One operation, as one rank describes it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "smdist/collective.h"
#include "smdist/dtype.h"
#include "smdist/reduce_op.h"

namespace smdist {

// Memory of the caller. `data` may be null if `bytes` is 0.
struct Span {
  void* data = nullptr;
  size_t bytes = 0;
};

// Value of Operation::peer: a receive takes a message from any rank.
constexpr int kAnyRank = -1;

// Number that the operations of one call share, because their count may differ among ranks that
// disagree about the call: so the next call has the same number on all ranks, anyway. If ranks
// disagree about one of the operations, all of them end with that error.
//
// Thread safety: none; the engine writes to it in submit().
struct CallNumber {
  // Length of all operations in bytes: of the buffer, or of one rank's part of it.
  uint64_t call_bytes = 0;
  uint64_t sequence = 0;     // set by the first submit()
  uint32_t num_started = 0;  // number of operations that were submitted
};

// Operation of a group of N ranks, as one rank submits it.
//
// The table shows the buffers of each kind of operation. A "part" is the data of one rank. "One or
// N" is either one buffer with N equal parts in rank order, or N buffers, one per rank. "As long"
// means as long as the input.
//
//   kind            inputs                        outputs
//   all_reduce      one                           one, as long
//   reduce_scatter  one or N                      one part
//   all_gather      one part                     one or N
//   broadcast       root: one; others: any        one; root: one (as long) or none
//   reduce          one                           root: one, as long; others: any
//   gather          one part                     root: one or N; others: any
//   scatter         root: one or N; others: any   one part
//   all_to_all      one or N (any sizes)          one or N (any sizes)
//   barrier         none                          none
//   send            one                           none
//   receive         none                          one
//
// "Any" buffers are neither read nor written. Inputs are not written, except where an output is the
// same memory: the output may be exactly the input (all_reduce, broadcast, reduce), or the rank's
// own part may be shared by input and output (reduce_scatter, all_gather, gather, scatter). Any
// other overlap is an error.
//
// The memory must stay valid, and inputs must keep their values, until `ended` or `done` is called.
// Afterwards the engine does not touch the memory again, even if the operation failed. After a
// failure the contents of the outputs are undefined.
//
// Sends and receives with the same sender, receiver and `tag` match in the order in which they were
// submitted. A send is complete when the matching receive has been submitted and the data have been
// sent.
struct Operation {
  Collective kind = Collective::kBarrier;
  Dtype dtype = Dtype::kUint8;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;  // factor of every input before the reduction; floating dtypes only
  int root = 0;      // rank in the group
  int peer = 0;      // rank in the group: the receiver of a send, the sender of a receive
  uint32_t tag = 0;  // tag of a send or receive

  // Hash by which callers describe the contents of the buffers, such as the shapes of tensors. If
  // it differs among the ranks, the operation fails. Sends and receives ignore it.
  uint64_t layout = 0;

  // Shared by the collectives of one call, which have to be submitted to one group, one after
  // another; null: the call is this operation alone.
  std::shared_ptr<CallNumber> call;
  std::vector<Span> inputs;
  std::vector<Span> outputs;
  // Why this rank takes no part in the collective, as the rest of a sentence that begins with the
  // rank's name; empty: it takes part. The call then ends on all ranks with a UsageError, whatever
  // the others have called, and `kind` is kBarrier. refusal_details: Fault::details of the error.
  std::string refusal{};
  std::string refusal_details{};

  // True if the other ranks may come at any time, so that none of them is reported as late.
  bool is_patient = false;
  int* source = nullptr;  // output of a receive: the sender's rank in the group; may be null

  // Maximum time from submit() to the end of the operation, above zero. After it, the engines of
  // all ranks fail with a TimeoutError that names the ranks for which the operation waits.
  std::chrono::milliseconds timeout{};

  // Callback that is called exactly once, on a thread for callbacks, with the error or, after
  // success, null. Must not throw. It is destroyed on that thread. May be empty if `ended` is set.
  std::function<void(std::exception_ptr)> done;

  // Callback that is called before `done`, as soon as the operation has ended, on the thread that
  // moves operations forward, which may be one of the caller. It must be as short as
  // Completion::complete() is, and is destroyed on that thread. May be empty if `done` is set.
  std::function<void(const std::exception_ptr&)> ended;
};

}  // namespace smdist
