// SPDX-License-Identifier: Apache-2.0
// All sums in shared memory that this rank takes part in.
#pragma once

#include <memory>
#include <vector>

#include "engine/reduction_buffer_pool.h"
#include "engine/submission.h"
#include "messaging/operation_id.h"
#include "messaging/shared_sum_ticket.h"
#include "smdist/transport.h"

namespace smdist {

// Begins sums, moves them on, signals peers about new chunks, and tells the transport whose
// signals to wait for.
//
// All members of a group do an operation in shared memory, or none does. A member that has no free
// buffer, or cannot read the memory of another one, sends an RTR frame without a ticket; then
// all members cancel the sum and follow a plan of messages.
//
// Thread safety: none.
class SharedSums final {
 public:
  enum class Advance : uint8_t { kBlocked, kMore, kDone };

  SharedSums(const Options& options, Transport& transport);

  // The part of this rank's arena that holds blocks for messages.
  Span own_blocks() const { return reduction_buffers_.blocks_of(transport_.own_arena()); }

  // Null: this operation has to follow a plan.
  SharedSum* begin(const Submission& submission);
  SharedSumTicket ticket_of(const SharedSum& sum) const {
    return reduction_buffers_.ticket_of(sum);
  }
  // A peer takes part with the given ticket. Throws PeerError if the ticket is wrong.
  void join(SharedSum& sum, int member, int rank, const SharedSumTicket& ticket);
  // End a sum that not all members have joined. No rank has read, or will read, its chunks.
  void cancel(const OperationId& id);

  std::vector<OperationId> ids() const;
  // Return whether there is neither a sum nor a signal to wait for.
  bool is_idle() const { return active_.empty() && !any_signals_enabled_; }
  // Move a few chunks of a sum; the sum is forgotten when it is done.
  Advance advance(const OperationId& id);
  // Tell the transport whose signals end its wait. Call when all sums are blocked.
  void enable_signals();

  // The engine has failed.
  void clear();

 private:
  struct Active {
    OperationId id;
    std::shared_ptr<const Group> group;
    SharedSum* sum;
  };

  std::vector<Active>::iterator find(const OperationId& id);
  SumTask task_of(const Submission& submission) const;
  void signal(const Group& group, SharedSum::MemberSet members);

  const Options& options_;
  Transport& transport_;
  ReductionBufferPool reduction_buffers_;
  std::vector<Active> active_;
  std::vector<bool> signals_enabled_;  // by peer: its signals end the transport's wait
  bool any_signals_enabled_ = false;
};

}  // namespace smdist
