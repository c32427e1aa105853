# SPDX-License-Identifier: Apache-2.0
"""How long it takes to sum gradients over the replicas of a stage.

Modelled is our own engine, as docs/architecture.md ("How a gradient travels") describes it. With
n bytes, h hosts and k ranks of the group on each:

    inside a host    each rank passes (k - 1)/k n to its neighbours, and as much of the result
    between hosts    each host sends (h - 1)/h n, and as much of the result: one rank's worth
    latency          one step inside and one between hosts, each there and back

    all-reduce = 2 (k-1)/k n / inside + 2 (h-1)/h n g / across + 2 latencies of each

where g groups share a host's network, since all stages on a host finish at about the same time.
The parts are added up. The engine overlaps them piece by piece, so a long sum takes less than
this, at best the longer part alone. A reduce-scatter is the way there, an all-gather the way back.
Partial sums of 16-bit numbers travel between hosts as fp32, so there the way there is longer.

(h - 1)/h n each way is the least that any algorithm with a sum in one of the hosts can send
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
class Replicas:
    """The ranks that hold the same stage, and what joins them.

    Attributes:
        num_hosts: Hosts that they are on.
        ranks_per_host: How many of them are on a host, at most.
        inside: Between two ranks of one host.
        across: Between hosts: what one host can send.
        groups_per_host: How many groups send through a host's network at once.
    """

    num_hosts: int
    ranks_per_host: int
    inside: Link
    across: Link
    groups_per_host: int = 1


def replicas_on(cluster: Cluster, ranks: Sequence[int]) -> Replicas:
    """Where some ranks of a cluster are.

    All other ranks of a host are taken to be in groups like this one, which reduce meanwhile.
    """
    by_host = Counter(rank // cluster.ranks_per_host for rank in ranks)
    most = max(by_host.values())
    return Replicas(
        num_hosts=len(by_host),
        ranks_per_host=most,
        inside=cluster.inside,
        across=cluster.across,
        groups_per_host=max(1, cluster.ranks_per_host // most),
    )


def all_reduce_seconds(num_bytes: int, replicas: Replicas, *, element_bytes: int = 4) -> float:
    """Until every replica has the sum of `num_bytes` of numbers of `element_bytes` each."""
    there = reduce_scatter_seconds(num_bytes, replicas, element_bytes=element_bytes)
    return there + all_gather_seconds(num_bytes, replicas)


def reduce_scatter_seconds(num_bytes: int, replicas: Replicas, *, element_bytes: int = 4) -> float:
    """Until every replica has its share of the sum; `num_bytes` are what each brings."""
    are_partial = replicas.ranks_per_host > 1 and element_bytes < _FP32_BYTES
    widening = _FP32_BYTES / element_bytes if are_partial else 1.0
    return _one_way(num_bytes, num_bytes * widening, replicas)


def all_gather_seconds(num_bytes: int, replicas: Replicas) -> float:
    """Until every replica has all shares; `num_bytes` are what each has then."""
    return _one_way(num_bytes, num_bytes, replicas)


def _one_way(inside_bytes: float, across_bytes: float, replicas: Replicas) -> float:
    shared = across_bytes * replicas.groups_per_host
    inside = _step(inside_bytes, replicas.ranks_per_host, replicas.inside)
    return inside + _step(shared, replicas.num_hosts, replicas.across)


def _step(num_bytes: float, parties: int, link: Link) -> float:
    """Everyone sends all but its own share."""
    if parties == 1:
        return 0.0
    return link.latency_seconds + num_bytes * (parties - 1) / parties / link.bytes_per_second
