// SPDX-License-Identifier: Apache-2.0
// From what a rank asks for to what it has to do. Pure.
#pragma once

#include "collectives/plan.h"
#include "collectives/summing.h"
#include "collectives/turns.h"
#include "engine/group.h"
#include "messaging/descriptor.h"
#include "smdist/operation.h"
#include "smdist/options.h"

namespace smdist {

// Throws UsageError if the operation is wrong by itself, for a rank of a group
// of `size` ranks.
void check(const Operation& operation, int rank, int size);

// What all ranks have to agree on. Requires: check() passed, as do the others.
Descriptor descriptor_of(const Operation& operation, int rank, int size);

// The same as told to one peer, a rank of the group.
Descriptor descriptor_for(Descriptor common, const Operation& operation, int peer, int size);

// How an operation is done, of the ways it could be.
struct Choice {
  Cut cut;
  Weights weights;            // of the members' shards
  bool is_one_shot = false;   // every rank sums all by itself
  bool is_shareable = false;  // shards of ranks on one host, who may share memory
};

// Takes a turn if one rank is to sum the whole buffer.
Choice choose(const Descriptor& descriptor, const Tuning& tuning, const Group& group, Turns& turns);

Plan plan_of(const Operation& operation, const Group& group, const Choice& choice);

// Throws UsageError if an engine cannot do with these.
void check(const Options& options);

}  // namespace smdist
