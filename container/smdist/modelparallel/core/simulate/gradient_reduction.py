# SPDX-License-Identifier: Apache-2.0
"""Time of summing gradients over the replicas of a stage.

The model is that of this project's engine, described in docs/architecture.md ("How a gradient
travels"). For n bytes, h hosts and k ranks of the group on each host:

    inside a host    each rank passes (k - 1)/k n to its neighbours, and as much of the result
    between hosts    each host sends (h - 1)/h n, and as much of the result: one rank's worth
    latency          one step inside and one between hosts, each there and back

    all-reduce = 2 (k-1)/k n / inside + 2 (h-1)/h n g / across + 2 latencies of each

where g groups share a host's network, since all stages on a host finish at about the same time.
The parts are added up. The engine overlaps them piece by piece, so a long sum takes less than
this formula, at best only the time of the longer part. A reduce-scatter is the first half of an
all-reduce, an all-gather the second half. Partial sums of 16-bit numbers travel between hosts as
fp32, so their first half takes longer.

No algorithm that sums on one of the hosts can send less than (h - 1)/h n in each direction
(Patarasu and Yuan, 2009); a ring sends as much with 2 (h - 1) latencies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Link

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLinks:
    """Replicas of one stage, and the links between them.

    Attributes:
        num_hosts: Number of hosts of the replicas.
        ranks_per_host: Largest number of replicas on one host.
        inside: Link between two ranks of the same host.
        across: Link of one host to the other hosts.
        groups_per_host: Number of groups that send through a host's network at the same time.
    """

    num_hosts: int
    ranks_per_host: int
    inside: Link
    across: Link
    groups_per_host: int = 1


def replicas_on(cluster: Cluster, ranks: Sequence[int]) -> ReplicaLinks:
    """Return the links between some ranks of a cluster, which are replicas.

    All other ranks of a host are assumed to form similar groups, which reduce at the same time.
    """
    by_host = Counter(rank // cluster.ranks_per_host for rank in ranks)
    most = max(by_host.values())
    return ReplicaLinks(
        num_hosts=len(by_host),
        ranks_per_host=most,
        inside=cluster.inside,
        across=cluster.across,
        groups_per_host=max(1, cluster.ranks_per_host // most),
    )


def all_reduce_seconds(num_bytes: int, replicas: ReplicaLinks, *, element_bytes: int = 4) -> float:
    """Return the time of an all-reduce of `num_bytes` bytes, with `element_bytes` an element."""
    there = reduce_scatter_seconds(num_bytes, replicas, element_bytes=element_bytes)
    return there + all_gather_seconds(num_bytes, replicas)


def reduce_scatter_seconds(
    num_bytes: int, replicas: ReplicaLinks, *, element_bytes: int = 4
) -> float:
    """Return the time of a reduce-scatter; each replica contributes `num_bytes` bytes."""
    are_partial = replicas.ranks_per_host > 1 and element_bytes < _FP32_BYTES
    widening = _FP32_BYTES / element_bytes if are_partial else 1.0
    return _one_way(num_bytes, num_bytes * widening, replicas)


def all_gather_seconds(num_bytes: int, replicas: ReplicaLinks) -> float:
    """Return the time of an all-gather; each replica has `num_bytes` bytes afterwards."""
    return _one_way(num_bytes, num_bytes, replicas)


def _one_way(inside_bytes: float, across_bytes: float, replicas: ReplicaLinks) -> float:
    shared = across_bytes * replicas.groups_per_host
    inside = _step(inside_bytes, replicas.ranks_per_host, replicas.inside)
    return inside + _step(shared, replicas.num_hosts, replicas.across)


def _step(num_bytes: float, parties: int, link: Link) -> float:
    """Return the time of one step, in which every party sends all but its own share."""
    if parties == 1:
        return 0.0
    return link.latency_seconds + num_bytes * (parties - 1) / parties / link.bytes_per_second
