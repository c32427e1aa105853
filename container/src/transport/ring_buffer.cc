// SPDX-License-Identifier: Apache-2.0
#include "transport/ring_buffer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "smdist/errors.h"

namespace smdist {

void RingBuffer::attach(Arena arena) {
  const Span span = arena.span();
  if (span.bytes < offsets_.side + sizeof(RingSide)) {
    throw SystemError("the shared memory of another rank has only " + std::to_string(span.bytes) +
                          " bytes, too few for its ring buffer",
                      EINVAL);
  }
  const auto* begin = static_cast<const uint8_t*>(span.data);
  arena_ = std::move(arena);
  head_ = reinterpret_cast<const RingHead*>(begin + offsets_.head);
  theirs_.store(reinterpret_cast<const RingSide*>(begin + offsets_.side));
}

size_t RingBuffer::free_bytes() const {
  const uint64_t on_its_way = written_ - theirs_.load()->read.load(std::memory_order_acquire);
  if (on_its_way > kRingBytes)
    throw PeerError("reported that it has read more bytes than this rank wrote");
  return kRingBytes - on_its_way;
}

size_t RingBuffer::write(const iovec* parts, size_t count) {
  const uint64_t before = written_;
  size_t left = free_bytes();
  bool is_all = true;
  for (size_t i = 0; i < count && is_all; ++i) {
    const size_t bytes = std::min(parts[i].iov_len, left);
    put(parts[i], bytes);
    left -= bytes;
    is_all = bytes == parts[i].iov_len;
  }
  ours_.written.store(written_);
  if (!is_all) ours_.wants_space.store(1);
  return written_ - before;
}

void RingBuffer::put(const iovec& part, size_t bytes) {
  const size_t at = written_ % kRingBytes;
  const size_t first = std::min(bytes, kRingBytes - at);
  const auto* data = static_cast<const uint8_t*>(part.iov_base);
  std::memcpy(&ours_.bytes[at], data, first);
  std::memcpy(&ours_.bytes[0], data + first, bytes - first);
  written_ += bytes;
}

Span RingBuffer::peek() const {
  const RingSide* theirs = theirs_.load();
  const uint64_t there = theirs->written.load(std::memory_order_acquire) - read_;
  if (there > kRingBytes) throw PeerError("wrote more bytes than its ring buffer holds");
  const size_t at = read_ % kRingBytes;
  return {const_cast<uint8_t*>(&theirs->bytes[at]),
          std::min(static_cast<size_t>(there), kRingBytes - at)};
}

void RingBuffer::consume(size_t bytes) {
  read_ += bytes;
  ours_.read.store(read_);
}

bool RingBuffer::must_notify() {
  if (head_->sleepers.load() == 0 || theirs_.load()->acknowledged.load() != notified_) return false;
  ++notified_;
  return true;
}

bool RingBuffer::must_notify_of_space() {
  return theirs_.load()->wants_space.load() != 0 && must_notify();
}

bool RingBuffer::signal() {
  ours_.signals.store(++signals_);
  return theirs_.load()->wants_signals.load() != 0 && must_notify();
}

void RingBuffer::take_signals() { signals_taken_.store(theirs_.load()->signals.load()); }

void RingBuffer::acknowledge(uint64_t calls) {
  acknowledged_ += calls;
  ours_.acknowledged.store(acknowledged_);
}

bool RingBuffer::has_events() const {
  const RingSide* theirs = theirs_.load();
  if (theirs == nullptr || has_ended_.load()) return false;
  if (theirs->written.load() != ours_.read.load()) return true;
  if (theirs->signals.load() != signals_taken_.load()) return true;
  return ours_.wants_space.load() != 0 && ours_.written.load() - theirs->read.load() < kRingBytes;
}

}  // namespace smdist
