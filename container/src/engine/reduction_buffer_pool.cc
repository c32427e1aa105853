// SPDX-License-Identifier: Apache-2.0
#include "engine/reduction_buffer_pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "smdist/errors.h"

namespace smdist {

ReductionBufferPool::ReductionBufferPool(ArenaLayout layout, Span own_arena)
    : layout_(std::move(layout)),
      arena_(own_arena),
      entries_(holds_all(own_arena) ? layout_.num_reduction_buffers : 0) {}

bool ReductionBufferPool::is_free(const BufferUse& entry) {
  return !entry.sum || (entry.sum->is_done() && entry.sum->is_drained());
}

SharedSum* ReductionBufferPool::begin(SumTask task, size_t member) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    BufferUse& entry = entries_[i];
    if (!is_free(entry)) continue;
    if (entry.sum) entry.count = entry.sum->end();
    entry.sum = std::make_unique<SharedSum>(std::move(task), member,
                                            layout_.reduction_buffer(arena_, i), entry.count);
    return entry.sum.get();
  }
  return nullptr;
}

SharedSumTicket ReductionBufferPool::ticket_of(const SharedSum& sum) const {
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const BufferUse& each) { return each.sum.get() == &sum; });
  return {static_cast<uint32_t>(entry - entries_.begin()), entry->count};
}

ReductionBuffer ReductionBufferPool::at(const Span& arena, const SharedSumTicket& ticket) const {
  if (ticket.buffer >= layout_.num_reduction_buffers || !holds_all(arena)) {
    throw PeerError("chose its reduction buffer " + std::to_string(ticket.buffer) +
                    " for a sum, but has no such buffer. Restart the job, and report this bug of "
                    "smdist");
  }
  return layout_.reduction_buffer(arena, ticket.buffer);
}

void ReductionBufferPool::cancel(SharedSum& sum) {
  sum.cancel();
  BufferUse& entry = entries_[ticket_of(sum).buffer];
  entry.count = sum.end();
  entry.sum.reset();
}

void ReductionBufferPool::clear() { entries_.clear(); }

}  // namespace smdist
