// SPDX-License-Identifier: Apache-2.0
// Slots and counters in shared memory, through which the ranks of a host add their data.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace smdist {

// A part of a rank's arena for one sum at a time. Slots hold chunks of data, counters tell which
// chunks are there. Only the rank that owns the arena writes it. A "member" is a rank that takes
// part in the sum.
//
// Each counter grows by one per chunk and is never reset between sums. New shared memory is zero,
// so all counters begin at zero.
//
// Thread safety: any thread may read counters; slots follow the order that the counters give.
class ReductionBuffer final {
 public:
  struct Shape {
    size_t members = 0;  // upper bound for any sum
    size_t slot_bytes = 0;
    uint32_t window = 0;  // number of slots per member

    size_t bytes() const;
  };
  using Counter = std::atomic<uint64_t>;

  // at: begin of the buffer, on a cache line. In another rank's arena it is read-only.
  ReductionBuffer(uint8_t* at, const Shape& shape) : at_(at), shape_(shape) {}

  uint32_t window() const { return shape_.window; }
  size_t slot_bytes() const { return shape_.slot_bytes; }

  // Chunks given to a member, chunks taken from a member, and chunks summed by the owner.
  Counter& given(size_t to) const { return counter(1 + to); }
  Counter& taken(size_t from) const { return counter(1 + shape_.members + from); }
  Counter& summed() const { return counter(0); }
  // Returns the slot for a chunk that was given to `member`; with the owner's own number, the
  // slot for a chunk of its sum.
  uint8_t* slot(size_t member, uint64_t chunk) const;

 private:
  Counter& counter(size_t number) const;

  uint8_t* at_;
  Shape shape_;
};

}  // namespace smdist
