// SPDX-License-Identifier: Apache-2.0
// Slots and counters in shared memory, through which the ranks of a host sum their data.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace smdist {

// A part of a rank's arena that is used by one sum at a time. Slots store chunks of data, and
// counters count the chunks that were written to slots or read from them. Only the rank that owns
// the arena writes to it. A "member" is a rank that takes part in the sum.
//
// Each counter grows by one per chunk and is never reset between sums. New shared memory is zero,
// so all counters begin at zero.
//
// Thread safety: any thread may read counters; a slot may be read after its counter has been read.
class ReductionBuffer final {
 public:
  // Size of a reduction buffer.
  struct Shape {
    size_t members = 0;  // maximum number of members of a sum
    size_t slot_bytes = 0;
    uint32_t window = 0;  // number of slots per member

    size_t bytes() const;
  };
  using Counter = std::atomic<uint64_t>;

  // at: beginning of the buffer, on a cache line. In another rank's arena it is read-only.
  ReductionBuffer(uint8_t* at, const Shape& shape) : at_(at), shape_(shape) {}

  uint32_t window() const { return shape_.window; }
  size_t slot_bytes() const { return shape_.slot_bytes; }

  // Counters of the chunks that the owner of the buffer has written for a member, has read from a
  // member, and has summed.
  Counter& given(size_t to) const { return counter(1 + to); }
  Counter& taken(size_t from) const { return counter(1 + shape_.members + from); }
  Counter& summed() const { return counter(0); }
  // Return the slot for a chunk that is written for `member`. With the number of the owner itself,
  // return the slot for a chunk of the owner's sum.
  uint8_t* slot(size_t member, uint64_t chunk) const;

 private:
  Counter& counter(size_t number) const;

  uint8_t* at_;
  Shape shape_;
};

}  // namespace smdist
