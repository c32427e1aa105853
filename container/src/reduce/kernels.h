// SPDX-License-Identifier: Apache-2.0
// Compiled loops of reduce(), once per instruction set.
//
// Each kernels_<instruction set>.cc is compiled with its own flags and includes
// kernel_templates.h. If two of them contained an inline function with external linkage, the
// linker would keep one variant for the whole program, of either instruction set. So they share
// only code with internal linkage, and call no function of the standard library.
#pragma once

#include <cstddef>
#include <cstdint>

#include "smdist/dtype.h"
#include "smdist/reduce_op.h"

namespace smdist {

struct Contributions {
  const void* const* sources;
  size_t number;   // number of sources
  double scale;    // factor of each contribution
  double divisor;  // divisor of the total
};

using Kernel = void (*)(const Contributions& from, void* destination, size_t count);

// Side of a sum that holds partial results.
enum class Partial : uint8_t { kNeither, kDestination, kSources };

// Requires: is_defined(op, dtype), and that the instruction set is available.
Kernel baseline_kernel(Dtype dtype, ReduceOp op, Partial partial);
Kernel avx2_kernel(Dtype dtype, ReduceOp op, Partial partial);
Kernel avx512_kernel(Dtype dtype, ReduceOp op, Partial partial);

}  // namespace smdist
