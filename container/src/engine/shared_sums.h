// SPDX-License-Identifier: Apache-2.0
// All sums in shared memory in which this rank takes part.
#pragma once

#include <memory>
#include <vector>

#include "engine/reduction_buffer_pool.h"
#include "engine/submission.h"
#include "messaging/operation_id.h"
#include "messaging/shared_sum_ticket.h"
#include "smdist/transport.h"

namespace smdist {

// Begins sums, processes their chunks, signals peers about new chunks, and sets whose signals end
// the transport's wait.
//
// Either all members of a group use shared memory for an operation, or none does. A member that has
// no free buffer, or cannot read the memory of another one, sends an RTR frame without a ticket;
// then all members cancel the sum and follow a plan of messages.
//
// Thread safety: none.
class SharedSums final {
 public:
  // Result of advance(): the sum waits for other ranks, more chunks can be processed, or it is
  // complete.
  enum class Advance : uint8_t { kBlocked, kMore, kDone };

  SharedSums(const Options& options, Transport& transport);

  // Return the part of this rank's arena that contains the blocks for messages.
  Span own_blocks() const { return reduction_buffers_.blocks_of(transport_.own_arena()); }

  // Begin the sum of an operation and return it; null if the operation has to follow a plan.
  SharedSum* begin(const Submission& submission);
  SharedSumTicket ticket_of(const SharedSum& sum) const {
    return reduction_buffers_.ticket_of(sum);
  }
  // Record that a peer takes part with the given ticket. member: its rank in the group. Throws
  // PeerError if the ticket is invalid.
  void join(SharedSum& sum, int member, int rank, const SharedSumTicket& ticket);
  // Cancel a sum that not all members have joined, so that no rank has read, or will read, its
  // chunks; or one whose operation has failed on all ranks.
  void cancel(const OperationId& id);

  // Return the operations of all sums.
  std::vector<OperationId> ids() const;
  // Return whether there are neither sums nor enabled signals.
  bool is_idle() const { return active_.empty() && !any_signals_enabled_; }
  // Process a few chunks of a sum. The sum is removed when it is complete.
  Advance advance(const OperationId& id);
  // Enable the signals of the members for which sums wait, and disable all others. Call when all
  // sums are blocked.
  void enable_signals();

  // Drop all sums, because the engine has failed.
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
  std::vector<bool> signals_enabled_;  // by peer: true if its signals end the transport's wait
  bool any_signals_enabled_ = false;
};

}  // namespace smdist
