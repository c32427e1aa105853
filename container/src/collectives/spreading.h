// SPDX-License-Identifier: Apache-2.0
// How what one rank has comes to all others.
#pragma once

#include <vector>

#include "collectives/hosts.h"
#include "collectives/plan_builder.h"

namespace smdist {

// Something on its way from one rank to others: to its neighbours and to the
// deputies of other hosts, who pass it on to theirs.
struct Spread {
  int origin = 0;
  uint32_t tag = 0;                  // no other message between two of the ranks may have it
  Region from;                       // on the origin
  Region to;                         // on the others
  std::vector<uint32_t> after = {};  // on the origin: what makes it
  int skipped_host = -1;             // has it already
};

// Adds what `rank` does for it.
void spread(PlanBuilder& builder, int rank, const Hosts& hosts, const Spread& what);

}  // namespace smdist
