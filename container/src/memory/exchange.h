// SPDX-License-Identifier: Apache-2.0
// Where ranks that share memory lay out what they add.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace smdist {

// A part of a rank's arena that serves one sum at a time: slots for pieces, and counters that
// say which pieces lie there. Only its owner writes it. "Member" is a rank of the sum.
//
// Counters grow by one with each piece, over all sums that the exchange serves; all zero at
// first, as new shared memory is.
class Exchange final {
 public:
  struct Shape {
    size_t members = 0;  // at most
    size_t slot_bytes = 0;
    uint32_t window = 0;  // slots for each member

    size_t bytes() const;
  };
  using Counter = std::atomic<uint64_t>;

  // Where an exchange lies, on a cache line; in an arena that is not ours it is only read.
  Exchange(uint8_t* at, const Shape& shape) : at_(at), shape_(shape) {}

  uint32_t window() const { return shape_.window; }
  size_t slot_bytes() const { return shape_.slot_bytes; }

  Counter& given(size_t to) const { return counter(1 + to); }
  Counter& taken(size_t from) const { return counter(1 + shape_.members + from); }
  Counter& summed() const { return counter(0); }
  // Of what was given to a member or, with the owner's own number, of its sums.
  uint8_t* slot(size_t member, uint64_t piece) const;

 private:
  Counter& counter(size_t number) const;

  uint8_t* at_;
  Shape shape_;
};

}  // namespace smdist
