// SPDX-License-Identifier: Apache-2.0
#include "collectives/hierarchical_broadcast.h"

namespace smdist {
namespace {

void send_to_own_host(PlanBuilder& builder, int rank, const HostTopology& hosts,
                      const HierarchicalBroadcast& message, uint32_t arrival) {
  for (const int neighbour : builder.rotated_peers()) {
    if (hosts.same_host(rank, neighbour))
      builder.send(neighbour, message.tag, message.to, {arrival});
  }
}

}  // namespace

void hierarchical_broadcast(PlanBuilder& builder, int rank, const HostTopology& hosts,
                            const HierarchicalBroadcast& message) {
  const int host = hosts.host_of(rank);
  if (host == message.skipped_host && rank != message.origin) return;
  if (rank == message.origin) {
    for (const int peer : builder.rotated_peers()) {
      const bool is_skipped = hosts.host_of(peer) == message.skipped_host;
      if (!is_skipped && hosts.is_direct(rank, peer)) {
        builder.send(peer, message.tag, message.from, message.after);
      }
    }
    return;
  }
  if (hosts.is_direct(message.origin, rank)) {
    const uint32_t arrival = builder.receive(message.origin, message.tag, message.to);
    const bool is_host_leader = !hosts.same_host(message.origin, rank);
    if (is_host_leader && message.to.bytes > 0)
      send_to_own_host(builder, rank, hosts, message, arrival);
  } else {
    builder.receive(hosts.host_leader(host, message.origin), message.tag, message.to);
  }
}

}  // namespace smdist
