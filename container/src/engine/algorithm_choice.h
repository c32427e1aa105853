// SPDX-License-Identifier: Apache-2.0
// Pure functions that compute the descriptor and the plan of an operation.
#pragma once

#include "collectives/hierarchical_reduce.h"
#include "collectives/plan.h"
#include "collectives/sharding.h"
#include "engine/group.h"
#include "messaging/descriptor.h"
#include "smdist/operation.h"
#include "smdist/tuning.h"

namespace smdist {

// Return the descriptor of the operation, which must match on all ranks of the group. Requires:
// check() has accepted the operation.
Descriptor descriptor_of(const Operation& operation, int rank, int size);

// Return the descriptor that is sent to one peer, a rank of the group. Only in all_to_all it
// differs among peers.
Descriptor descriptor_for(Descriptor common, const Operation& operation, int peer, int size);

// Algorithm of an operation, and its parameters.
struct AlgorithmChoice {
  Segmentation segmentation;
  Weights weights;            // relative size of each member's shard
  bool is_one_shot = false;   // one-shot all_reduce: every rank reduces the whole buffer
  bool is_shareable = false;  // all_reduce in shards on one host, which may use shared memory
};

// Choose the algorithm of an operation. turn: number of the operation, which decides about the
// owner if a single rank reduces the whole buffer.
AlgorithmChoice choose(const Descriptor& descriptor, const Tuning& tuning, const Group& group,
                       uint64_t turn);

// Return this rank's plan of the operation.
Plan plan_of(const Operation& operation, const Group& group, const AlgorithmChoice& choice);

}  // namespace smdist
