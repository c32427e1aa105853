// SPDX-License-Identifier: Apache-2.0
// Loops of reduce(), compiled once per instruction set.
//
// Each kernels_<instruction set>.cc is compiled with its own flags and includes kernel_templates.h.
// If two of them contained an inline function with external linkage, the linker would keep one
// variant for the whole program, of either instruction set. So they share only code with internal
// linkage, and call no function of the standard library.
#pragma once

#include <cstddef>
#include <cstdint>

#include "smdist/dtype.h"
#include "smdist/reduce_op.h"

namespace smdist {

// Sources of a reduction, and factors.
struct Contributions {
  const void* const* sources;
  size_t number;   // number of sources
  double scale;    // factor of each contribution
  double divisor;  // divisor of the total
};

// Function that reduces `count` elements of all sources into the destination.
using Kernel = void (*)(const Contributions& from, void* destination, size_t count);

// Tells which of destination and sources contain partial results, in the accumulation dtype.
enum class Partial : uint8_t { kNeither, kDestination, kSources };

// Return the loop for a dtype and reduction. Requires: is_defined(op, dtype), and that the
// instruction set is available.
Kernel baseline_kernel(Dtype dtype, ReduceOp op, Partial partial);
Kernel avx2_kernel(Dtype dtype, ReduceOp op, Partial partial);
Kernel avx512_kernel(Dtype dtype, ReduceOp op, Partial partial);

}  // namespace smdist
