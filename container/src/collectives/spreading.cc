// SPDX-License-Identifier: Apache-2.0
#include "collectives/spreading.h"

namespace smdist {
namespace {

void send_to_neighbours(PlanBuilder& builder, int rank, const Hosts& hosts, const Spread& what,
                        uint32_t arrival) {
  for (const int neighbour : builder.rotated_peers()) {
    if (hosts.shares(rank, neighbour)) builder.send(neighbour, what.tag, what.to, {arrival});
  }
}

}  // namespace

void spread(PlanBuilder& builder, int rank, const Hosts& hosts, const Spread& what) {
  const int host = hosts.host_of(rank);
  if (host == what.skipped_host && rank != what.origin) return;
  if (rank == what.origin) {
    for (const int peer : builder.rotated_peers()) {
      const bool is_skipped = hosts.host_of(peer) == what.skipped_host;
      if (!is_skipped && hosts.is_direct(rank, peer)) {
        builder.send(peer, what.tag, what.from, what.after);
      }
    }
    return;
  }
  if (hosts.is_direct(what.origin, rank)) {
    const uint32_t arrival = builder.receive(what.origin, what.tag, what.to);
    const bool is_deputy = !hosts.shares(what.origin, rank);
    if (is_deputy && what.to.bytes > 0) send_to_neighbours(builder, rank, hosts, what, arrival);
  } else {
    builder.receive(hosts.deputy(host, what.origin), what.tag, what.to);
  }
}

}  // namespace smdist
