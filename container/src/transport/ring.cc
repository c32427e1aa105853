// SPDX-License-Identifier: Apache-2.0
#include "transport/ring.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "smdist/errors.h"

namespace smdist {

void Ring::attach(Arena arena) {
  const Span span = arena.span();
  if (span.bytes < place_.side + sizeof(RingSide)) {
    throw SystemError("the memory of another rank is too short", EINVAL);
  }
  const auto* begin = static_cast<const uint8_t*>(span.data);
  arena_ = std::move(arena);
  head_ = reinterpret_cast<const RingHead*>(begin + place_.head);
  theirs_.store(reinterpret_cast<const RingSide*>(begin + place_.side));
}

size_t Ring::room() const {
  const uint64_t on_its_way = written_ - theirs_.load()->read.load(std::memory_order_acquire);
  if (on_its_way > kRingBytes) throw PeerError("has read what nobody wrote");
  return kRingBytes - on_its_way;
}

size_t Ring::write(const iovec* parts, size_t count) {
  const uint64_t before = written_;
  size_t left = room();
  bool is_all = true;
  for (size_t i = 0; i < count && is_all; ++i) {
    const size_t bytes = std::min(parts[i].iov_len, left);
    put(parts[i], bytes);
    left -= bytes;
    is_all = bytes == parts[i].iov_len;
  }
  ours_.written.store(written_);
  if (!is_all) ours_.wants_room.store(1);
  return written_ - before;
}

void Ring::put(const iovec& part, size_t bytes) {
  const size_t at = written_ % kRingBytes;
  const size_t first = std::min(bytes, kRingBytes - at);
  const auto* data = static_cast<const uint8_t*>(part.iov_base);
  std::memcpy(&ours_.bytes[at], data, first);
  std::memcpy(&ours_.bytes[0], data + first, bytes - first);
  written_ += bytes;
}

Span Ring::peek() const {
  const RingSide* theirs = theirs_.load();
  const uint64_t there = theirs->written.load(std::memory_order_acquire) - read_;
  if (there > kRingBytes) throw PeerError("wrote more than there was room for");
  const size_t at = read_ % kRingBytes;
  return {const_cast<uint8_t*>(&theirs->bytes[at]),
          std::min(static_cast<size_t>(there), kRingBytes - at)};
}

void Ring::consume(size_t bytes) {
  read_ += bytes;
  ours_.read.store(read_);
}

bool Ring::must_call() {
  if (head_->sleepers.load() == 0 || theirs_.load()->heard.load() != called_) return false;
  ++called_;
  return true;
}

bool Ring::must_call_for_room() { return theirs_.load()->wants_room.load() != 0 && must_call(); }

bool Ring::signal() {
  ours_.signals.store(++signals_);
  return theirs_.load()->wants_signals.load() != 0 && must_call();
}

void Ring::take_signals() { signals_taken_.store(theirs_.load()->signals.load()); }

void Ring::hear(uint64_t calls) {
  heard_ += calls;
  ours_.heard.store(heard_);
}

bool Ring::has_news() const {
  const RingSide* theirs = theirs_.load();
  if (theirs == nullptr || has_ended_.load()) return false;
  if (theirs->written.load() != ours_.read.load()) return true;
  if (theirs->signals.load() != signals_taken_.load()) return true;
  return ours_.wants_room.load() != 0 && ours_.written.load() - theirs->read.load() < kRingBytes;
}

}  // namespace smdist
