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

// Allocates a reduction buffer to each sum in shared memory. A reduction buffer is free again when
// all ranks have read what lies in it.
//
// Thread safety: none.
class ReductionBufferPool final {
 public:
  // An arena that is too short for the layout has no reduction buffers.
  ReductionBufferPool(ArenaLayout layout, Span own_arena);

  Span blocks_of(const Span& arena) const { return layout_.blocks(arena); }
  // The longest chunk that fits in a slot.
  size_t slot_bytes() const { return layout_.shape.slot_bytes; }
  // Begin a sum at a free buffer; null if none is free.
  SharedSum* begin(SumTask task, size_t member);
  // Ticket by which the other ranks find this rank's part of a sum.
  SharedSumTicket ticket_of(const SharedSum& sum) const;
  // A reduction buffer of another rank. Throws PeerError if the rank has no such buffer.
  ReductionBuffer at(const Span& arena, const SharedSumTicket& ticket) const;
  // End a sum that not all ranks have joined.
  void cancel(SharedSum& sum);
  // The engine has failed: the memory is not touched again.
  void clear();

 private:
  struct BufferUse {
    uint64_t count = 0;              // where the counters are between two sums
    std::unique_ptr<SharedSum> sum;  // the last one
  };

  static bool is_free(const BufferUse& entry);
  bool holds_all(const Span& arena) const { return arena.bytes >= layout_.bytes; }

  const ArenaLayout layout_;
  const Span arena_;
  std::vector<BufferUse> entries_;
};

}  // namespace smdist
