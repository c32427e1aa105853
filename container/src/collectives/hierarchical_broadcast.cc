// SPDX-License-Identifier: Apache-2.0
#include "collectives/hierarchical_broadcast.h"

namespace smdist {
namespace {

void send_to_own_host(PlanBuilder& builder, int rank, const HostTopology& hosts,
                      const HierarchicalBroadcast& what, uint32_t arrival) {
  for (const int neighbour : builder.rotated_peers()) {
    if (hosts.same_host(rank, neighbour)) builder.send(neighbour, what.tag, what.to, {arrival});
  }
}

}  // namespace

void hierarchical_broadcast(PlanBuilder& builder, int rank, const HostTopology& hosts,
                            const HierarchicalBroadcast& what) {
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
    const bool is_host_leader = !hosts.same_host(what.origin, rank);
    if (is_host_leader && what.to.bytes > 0) send_to_own_host(builder, rank, hosts, what, arrival);
  } else {
    builder.receive(hosts.host_leader(host, what.origin), what.tag, what.to);
  }
}

}  // namespace smdist
