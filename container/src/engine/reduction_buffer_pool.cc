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
  return !entry.is_running && (!entry.sum || entry.sum->is_drained());
}

SharedSum* ReductionBufferPool::begin(SumTask task, size_t member) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    BufferUse& entry = entries_[i];
    if (!is_free(entry)) continue;
    if (entry.sum) entry.count = entry.sum->end();
    entry.sum = std::make_unique<SharedSum>(std::move(task), member,
                                            layout_.reduction_buffer(arena_, i), entry.count);
    entry.is_running = true;
    return entry.sum.get();
  }
  return nullptr;
}

size_t ReductionBufferPool::index_of(const SharedSum& sum) const {
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const BufferUse& each) { return each.sum.get() == &sum; });
  return static_cast<size_t>(entry - entries_.begin());
}

void ReductionBufferPool::end(const SharedSum& sum) { entries_[index_of(sum)].is_running = false; }

SharedSumTicket ReductionBufferPool::ticket_of(const SharedSum& sum) const {
  const size_t index = index_of(sum);
  SharedSumTicket ticket{static_cast<uint32_t>(index), entries_[index].count};
  if (const uint8_t* const data = sum.readable_data()) {
    const auto* const begin = static_cast<const uint8_t*>(layout_.caller_memory(arena_).data);
    ticket.data_at = static_cast<uint64_t>(data - begin);
  }
  return ticket;
}

bool ReductionBufferPool::is_readable(const Span& buffer) const {
  const Span memory = layout_.caller_memory(arena_);
  const auto begin = reinterpret_cast<uintptr_t>(memory.data);
  const auto at = reinterpret_cast<uintptr_t>(buffer.data);
  return at >= begin && at - begin <= memory.bytes && buffer.bytes <= memory.bytes - (at - begin);
}

const uint8_t* ReductionBufferPool::data_at(const Span& arena, const SharedSumTicket& ticket,
                                            size_t bytes) const {
  if (ticket.data_at == SharedSumTicket::kInSlots) return nullptr;
  const Span memory = layout_.caller_memory(arena);
  if (ticket.data_at > memory.bytes || bytes > memory.bytes - ticket.data_at) {
    throw PeerError(
        "sent an address outside of its shared memory. Restart the job, and report this bug of "
        "smdist");
  }
  return static_cast<const uint8_t*>(memory.data) + ticket.data_at;
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
  BufferUse& entry = entries_[index_of(sum)];
  entry.count = sum.end();
  entry.is_running = false;
  entry.sum.reset();
}

void ReductionBufferPool::clear() { entries_.clear(); }

}  // namespace smdist
