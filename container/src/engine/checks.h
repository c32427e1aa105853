// SPDX-License-Identifier: Apache-2.0
// Checks of the arguments that callers pass to the engine, before data are sent to other ranks.
#pragma once

#include "smdist/operation.h"
#include "smdist/options.h"

namespace smdist {

// Throw UsageError if the arguments of the operation are invalid for this rank of a group of `size`
// ranks.
void check(const Operation& operation, int rank, int size);

// Throw UsageError if the options of an engine are invalid.
void check(const Options& options);

}  // namespace smdist
