// SPDX-License-Identifier: Apache-2.0
// Sums of N contributions in one pass.
//
// Every element of the result is ((s0 . s1) . s2) ..., in the order of the
// sources, so its bits depend on nothing but that order. float16 and bfloat16
// accumulate in float32 and round once, at the end; float32 and float64 in
// themselves; integers wrap. A floating result that is no number is the one quiet,
// positive NaN without payload, at every level and on every processor.
#pragma once

#include <cstddef>
#include <vector>

#include "reduce/level.h"
#include "smdist/dtype.h"
#include "smdist/reduce_op.h"

namespace smdist {

// Combines `count` elements of every source into destination. Sources are
// multiplied by `scale` first (floating dtypes only). The destination may be one
// of the sources, but may not overlap one otherwise.
// Requires: at least one source, is_defined(op, dtype), all aligned to elements, and
// that the level is available.
void reduce(Dtype dtype, ReduceOp op, double scale, const std::vector<const void*>& sources,
            void* destination, size_t count, Level level = best_level());

// The same in two steps, with one rounding at the end of the second: what a part
// of the contributions comes to, in the dtype it is accumulated in, and what those
// partial results come to. contributions: their number in all, for averages.
void reduce_to_partial(Dtype dtype, ReduceOp op, double scale,
                       const std::vector<const void*>& sources, void* destination, size_t count,
                       Level level = best_level());
void reduce_partials(Dtype dtype, ReduceOp op, int contributions,
                     const std::vector<const void*>& sources, void* destination, size_t count,
                     Level level = best_level());

// Of an element of a partial result: 4 for float16 and bfloat16.
size_t partial_bytes(Dtype dtype);

}  // namespace smdist
