// SPDX-License-Identifier: Apache-2.0
// Broadcast in two levels: between hosts, then within each host.
#pragma once

#include <vector>

#include "collectives/host_topology.h"
#include "collectives/plan_builder.h"

namespace smdist {

// Message from one rank to all others. It goes directly to the ranks of the sender's host and to
// the leaders of the other hosts, which forward it to the other ranks of their hosts.
struct HierarchicalBroadcast {
  int origin = 0;                    // rank that sends the message
  uint32_t tag = 0;                  // different from all other tags of the operation
  Region from;                       // source region on the origin
  Region to;                         // target region on all other ranks
  std::vector<uint32_t> after = {};  // on the origin: steps that write the source region
  int skipped_host = -1;             // host to which the message is not sent; -1: none
};

// Add the steps of `rank` to its plan.
void hierarchical_broadcast(PlanBuilder& builder, int rank, const HostTopology& hosts,
                            const HierarchicalBroadcast& message);

}  // namespace smdist
