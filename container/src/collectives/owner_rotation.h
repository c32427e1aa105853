// SPDX-License-Identifier: Apache-2.0
// Choice of the rank that sums a short buffer alone.
#pragma once

#include <cstdint>

#include "collectives/sharding.h"

namespace smdist {

// Return the owner of a short buffer, a rank. Ranks take turns in proportion to their weights. The
// number of the turn decides alone: if ranks disagree about the length of a buffer, they have the
// same owners afterwards. weights: relative share of each rank, at least one above zero.
int owner_of(uint64_t turn, const Weights& weights);

}  // namespace smdist
