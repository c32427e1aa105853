// SPDX-License-Identifier: Apache-2.0
// Broadcast in two levels: between hosts, then within each host.
#pragma once

#include <vector>

#include "collectives/host_topology.h"
#include "collectives/plan_builder.h"

namespace smdist {

// A message from one rank to all others: directly to the ranks of its own host and to the leaders
// of other hosts, which forward it to the ranks of theirs.
struct HierarchicalBroadcast {
  int origin = 0;
  uint32_t tag = 0;                  // unique among the messages between any two of the ranks
  Region from;                       // source region on the origin
  Region to;                         // target region on all other ranks
  std::vector<uint32_t> after = {};  // on the origin: steps that produce the source
  int skipped_host = -1;             // host that needs no message; -1: none
};

// Adds the steps of `rank` to its plan.
void hierarchical_broadcast(PlanBuilder& builder, int rank, const HostTopology& hosts,
                            const HierarchicalBroadcast& message);

}  // namespace smdist
