// SPDX-License-Identifier: Apache-2.0
// The reduction buffers in this rank's arena.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/shared_sum.h"
#include "memory/arena_layout.h"
#include "messaging/shared_sum_ticket.h"

namespace smdist {

// Assigns a reduction buffer to each sum in shared memory. The buffer is free again when all ranks
// have read the data in it.
//
// Thread safety: none.
class ReductionBufferPool final {
 public:
  // An arena that is too short for the layout has no reduction buffers.
  ReductionBufferPool(ArenaLayout layout, Span own_arena);

  // Return the part of an arena that contains the blocks for messages.
  Span blocks_of(const Span& arena) const { return layout_.blocks(arena); }
  // Return the maximum length of a chunk.
  size_t slot_bytes() const { return layout_.shape.slot_bytes; }
  // Return whether the other ranks of the host can read a buffer where it lies.
  bool is_readable(const Span& buffer) const;
  // Begin a sum in a free buffer, and return it; null if no buffer is free. member: this rank's
  // number in the group.
  SharedSum* begin(SumTask task, size_t member);
  // Record that this rank has finished a sum; until then the buffer is in use, whatever others do.
  void end(const SharedSum& sum);
  // Return the ticket by which the other ranks find this rank's reduction buffer of a sum.
  SharedSumTicket ticket_of(const SharedSum& sum) const;
  // Return the reduction buffer of another rank that a ticket names. Throws PeerError if there is
  // no such buffer.
  ReductionBuffer at(const Span& arena, const SharedSumTicket& ticket) const;
  // Return the data of another rank, of `bytes` bytes, that a ticket names; null if they come to
  // slots. Throws PeerError if they are not in that rank's memory of callers.
  const uint8_t* data_at(const Span& arena, const SharedSumTicket& ticket, size_t bytes) const;
  // Cancel a sum: see SharedSum.
  void cancel(SharedSum& sum);
  // Drop all sums, because the engine has failed.
  void clear();

 private:
  struct BufferUse {
    uint64_t count = 0;              // value of the counters between two sums
    std::unique_ptr<SharedSum> sum;  // the current or last sum
    bool is_running = false;         // end() or cancel() has yet to be called for the sum
  };

  size_t index_of(const SharedSum& sum) const;

  static bool is_free(const BufferUse& entry);
  bool holds_all(const Span& arena) const { return arena.bytes >= layout_.bytes; }

  const ArenaLayout layout_;
  const Span arena_;
  std::vector<BufferUse> entries_;
};

}  // namespace smdist
