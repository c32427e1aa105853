// SPDX-License-Identifier: Apache-2.0
#include "memory/reduction_buffer.h"

namespace smdist {
namespace {

constexpr size_t kLine = 64;

size_t counters_bytes(size_t members) { return (1 + 2 * members) * kLine; }

}  // namespace

size_t ReductionBuffer::Shape::bytes() const {
  return counters_bytes(members) + members * window * slot_bytes;
}

ReductionBuffer::Counter& ReductionBuffer::counter(size_t number) const {
  return *reinterpret_cast<Counter*>(at_ + number * kLine);
}

uint8_t* ReductionBuffer::slot(size_t member, uint64_t chunk) const {
  const size_t number = member * shape_.window + chunk % shape_.window;
  return at_ + counters_bytes(shape_.members) + number * shape_.slot_bytes;
}

}  // namespace smdist
