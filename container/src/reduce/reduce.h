// SPDX-License-Identifier: Apache-2.0
// Reduction of N contributions in one pass.
//
// Every element of the result is ((s0 . s1) . s2) ..., in the order of the sources, so its bits
// depend only on that order. float16 and bfloat16 accumulate in float32 and are rounded once, at
// the end; float32 and float64 accumulate in their own precision; integers wrap. A result that is
// not a number is always the quiet, positive NaN without payload, with every instruction set and on
// every processor.
#pragma once

#include <cstddef>
#include <vector>

#include "reduce/instruction_set.h"
#include "smdist/dtype.h"
#include "smdist/reduce_op.h"

namespace smdist {

// Reduce `count` elements of every source into the destination. Sources are multiplied by `scale`
// first (floating dtypes only). The destination may be one of the sources, but must not overlap a
// source partially. Requires: at least one source, is_defined(op, dtype), all pointers aligned to
// elements, and that the instruction set is available.
void reduce(Dtype dtype, ReduceOp op, double scale, const std::vector<const void*>& sources,
            void* destination, size_t count, InstructionSet isa = best_instruction_set());

// Reduce in two steps, with one rounding at the end of the second. reduce_to_partial() reduces some
// of the contributions to a partial result in the accumulation dtype; reduce_partials() reduces
// partial results to the final one. contributions: total number of contributions, for averages.
void reduce_to_partial(Dtype dtype, ReduceOp op, double scale,
                       const std::vector<const void*>& sources, void* destination, size_t count,
                       InstructionSet isa = best_instruction_set());
void reduce_partials(Dtype dtype, ReduceOp op, int contributions,
                     const std::vector<const void*>& sources, void* destination, size_t count,
                     InstructionSet isa = best_instruction_set());

// Return the number of bytes per element of a partial result: 4 for float16 and bfloat16.
size_t partial_bytes(Dtype dtype);

}  // namespace smdist
