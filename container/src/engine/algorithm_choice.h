// SPDX-License-Identifier: Apache-2.0
// Pure functions from an operation to its descriptor and its plan.
#pragma once

#include "collectives/hierarchical_reduce.h"
#include "collectives/owner_rotation.h"
#include "collectives/plan.h"
#include "engine/group.h"
#include "messaging/descriptor.h"
#include "smdist/operation.h"
#include "smdist/tuning.h"

namespace smdist {

// Description of the operation that all ranks of the group have to agree on. Requires: check()
// passed.
Descriptor descriptor_of(const Operation& operation, int rank, int size);

// Descriptor as it is sent to one peer, a rank of the group. It differs among peers in all_to_all.
Descriptor descriptor_for(Descriptor common, const Operation& operation, int peer, int size);

// Algorithm of an operation, and its parameters.
struct AlgorithmChoice {
  Segmentation segmentation;
  Weights weights;            // of the members' shards
  bool is_one_shot = false;   // every rank reduces the whole buffer by itself
  bool is_shareable = false;  // in shards on one host, so that shared memory may be used
};

// Choose the algorithm. Advances `owner_rotation` if a single rank is to reduce the whole buffer.
AlgorithmChoice choose(const Descriptor& descriptor, const Tuning& tuning, const Group& group,
                       OwnerRotation& owner_rotation);

Plan plan_of(const Operation& operation, const Group& group, const AlgorithmChoice& choice);

}  // namespace smdist
