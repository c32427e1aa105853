// SPDX-License-Identifier: Apache-2.0
// The reductions: how the values of all ranks become one value.
#pragma once

#include <cstdint>

#include "smdist/dtype.h"

namespace smdist {

// The values are part of the wire format: append, never renumber.
enum class ReduceOp : uint8_t {
  kSum = 0,      // for bool: or
  kAverage = 1,  // floating dtypes only; divides once, before the one rounding
  kProduct = 2,  // for bool: and
  kMin = 3,      // NaN wins
  kMax = 4,      // NaN wins
  kBand = 5,     // bitwise, as the next two: integers and bool only
  kBor = 6,
  kBxor = 7,
};
constexpr uint8_t kReduceOps = 8;

const char* name_of(ReduceOp op);

// Return whether this reduction is defined for elements of this dtype.
bool is_defined(ReduceOp op, Dtype dtype);

}  // namespace smdist
