// SPDX-License-Identifier: Apache-2.0
// The element types that the core can reduce.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smdist {

// Element type of a buffer. The values are part of the wire format: append, never renumber.
enum class Dtype : uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBfloat16 = 3,
  kInt8 = 4,
  kUint8 = 5,
  kInt16 = 6,
  kInt32 = 7,
  kInt64 = 8,
  kBool = 9,  // one byte; any value but zero is true
};
constexpr uint8_t kDtypes = 10;

// Return the size of one element in bytes.
size_t element_bytes(Dtype dtype);
// Return the name in Python and in messages, such as "float32".
const char* name_of(Dtype dtype);
// Return whether the dtype is a floating-point type.
bool is_floating(Dtype dtype);

}  // namespace smdist
