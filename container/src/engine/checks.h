// SPDX-License-Identifier: Apache-2.0
// Checks of what callers pass to the engine, before anything reaches another rank.
#pragma once

#include "smdist/operation.h"
#include "smdist/options.h"

namespace smdist {

// Throws UsageError if the operation is wrong in itself, for a rank of a group of `size` ranks.
void check(const Operation& operation, int rank, int size);

// Throws UsageError if an engine cannot work with these options.
void check(const Options& options);

}  // namespace smdist
