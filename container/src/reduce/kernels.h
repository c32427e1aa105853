// SPDX-License-Identifier: Apache-2.0
// The compiled loops behind reduce(), once for each level.
//
// kernels_<level>.cc are compiled with the flags of their level, and each includes
// kernel.h for itself. An inline function with external linkage that two of them
// contained would be one function, of either instruction set, for the whole program:
// so they share only what has internal linkage, and use nothing of the standard
// library that is code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "smdist/dtype.h"
#include "smdist/reduce_op.h"

namespace smdist {

struct Contributions {
  const void* const* sources;
  size_t number;   // of sources
  double scale;    // of each contribution
  double divisor;  // of the total
};

using Kernel = void (*)(const Contributions& from, void* destination, size_t count);

// Which of the two sides of a sum are partial results.
enum class Partial : uint8_t { kNeither, kDestination, kSources };

// Requires: is_defined(op, dtype), and that the level is available.
Kernel baseline_kernel(Dtype dtype, ReduceOp op, Partial partial);
Kernel avx2_kernel(Dtype dtype, ReduceOp op, Partial partial);
Kernel avx512_kernel(Dtype dtype, ReduceOp op, Partial partial);

}  // namespace smdist
