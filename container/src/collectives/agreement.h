// SPDX-License-Identifier: Apache-2.0
// Additions to a plan, by which no rank completes it before all ranks have posted the operation.
//
// In most collectives a rank needs data of all others, directly or through others, and so cannot
// complete its plan if ranks disagree about the call. In a broadcast, scatter, gather or reduce,
// or if there are no data, some of the messages of a plan say nothing about other ranks.
#pragma once

#include "collectives/plan.h"

namespace smdist {

// Number of ranks up to which all of them exchange signals in rooted collectives. This takes one
// latency step and N - 1 short frames per rank; in larger groups, the root is the only rank with
// so many frames, and the collective takes one latency step more.
constexpr int kMaxSignallingRanks = 16;

// Add signals between this rank and all others with which it exchanges no messages, so that the
// plan is complete only after all ranks have posted the operation.
void await_all_ranks(Plan& plan, int rank, int size);

// As await_all_ranks(), but only the root exchanges signals with all ranks. It sends data to other
// ranks after that, so whoever receives data that come from the root knows that all ranks have
// posted the operation. receives_from_root: all ranks receive such data in this operation; false:
// the root sends them a token of one byte. Requires that the input of the root is not empty.
void await_all_ranks_at_root(Plan& plan, int rank, int size, int root, bool receives_from_root);

}  // namespace smdist
