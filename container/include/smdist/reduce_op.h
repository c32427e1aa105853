// SPDX-License-Identifier: Apache-2.0
// The reductions: how the values of all ranks become one value.
#pragma once

#include <cstdint>

#include "smdist/dtype.h"

namespace smdist {

// Reduction of a collective. The values are part of the wire format: append, never renumber.
enum class ReduceOp : uint8_t {
  kSum = 0,      // for bool: logical or
  kAverage = 1,  // sum divided by the number of ranks; floating dtypes only
  kProduct = 2,  // for bool: logical and
  kMin = 3,      // NaN if any value is NaN
  kMax = 4,      // NaN if any value is NaN
  kBand = 5,     // bitwise and; integers and bool only
  kBor = 6,      // bitwise or; integers and bool only
  kBxor = 7,     // bitwise exclusive or; integers and bool only
};
constexpr uint8_t kReduceOps = 8;

// Return the name in Python and in messages, such as "sum".
const char* name_of(ReduceOp op);

// Return whether the reduction is defined for elements of this dtype.
bool is_defined(ReduceOp op, Dtype dtype);

}  // namespace smdist
