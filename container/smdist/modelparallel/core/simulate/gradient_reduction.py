# SPDX-License-Identifier: Apache-2.0
"""Time of summing gradients over the replicas of a stage (all-reduce).

The model is that of this project's engine, described in docs/architecture.md ("How a gradient
travels"). Its numbers are

    n               bytes of the gradients
    h, k            hosts, and replicas on each host
    g               groups of replicas that use a host's network at the same time, because all
                    stages on a host finish at about the same time
    inside, across  bandwidths within a host, and between hosts

Each rank and each host first sends data to sum, and then as much of the result:

    inside a host    each rank sends (k - 1)/k n of its gradients, then as much of the result
    between hosts    each host sends (h - 1)/h n of its sums, then as much of the result
    latency          twice that of a message inside a host, and twice that between hosts

    all-reduce = 2 (k-1)/k n / inside + 2 (h-1)/h n g / across + 2 latencies of each

The engine overlaps these parts. So a long sum takes less than this formula, at best only the time
of the longer part. A reduce-scatter is the first half of an all-reduce, an all-gather the second
half. Sums of 16-bit numbers are sent between hosts in fp32, so their first half takes longer.

No algorithm that sums on one of the hosts can send less than (h - 1)/h n in each direction
(Patarasu and Yuan, 2009). A ring sends as much with 2 (h - 1) latencies.
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
        num_hosts: Number of hosts that have replicas.
        ranks_per_host: Largest number of replicas on one host.
        inside: Link between two ranks of the same host.
        across: Link between ranks of different hosts.
        groups_per_host: Number of groups of replicas that use a host's network at the same time.
    """

    num_hosts: int
    ranks_per_host: int
    inside: Link
    across: Link
    groups_per_host: int = 1


def replicas_on(cluster: Cluster, ranks: Sequence[int]) -> ReplicaLinks:
    """Return the links between the given ranks of a cluster, which are replicas of one stage.

    The other ranks of a host are assumed to form equal groups, which reduce at the same time.
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
    """Return the seconds of an all-reduce.

    Args:
        num_bytes: Bytes of the gradients of one replica.
        replicas: Replicas that sum them.
        element_bytes: Bytes of one gradient element. Sums of 16-bit elements may be sent in fp32,
            which takes longer.
    """
    there = reduce_scatter_seconds(num_bytes, replicas, element_bytes=element_bytes)
    return there + all_gather_seconds(num_bytes, replicas)


def reduce_scatter_seconds(
    num_bytes: int, replicas: ReplicaLinks, *, element_bytes: int = 4
) -> float:
    """Return the seconds of a reduce-scatter.

    Args:
        num_bytes: Bytes of the gradients of one replica.
        replicas: Replicas that sum them.
        element_bytes: Bytes of one gradient element. Sums of 16-bit elements may be sent in fp32,
            which takes longer.
    """
    sums_are_fp32 = replicas.ranks_per_host > 1 and element_bytes < _FP32_BYTES
    widening = _FP32_BYTES / element_bytes if sums_are_fp32 else 1.0
    return _one_way(num_bytes, num_bytes * widening, replicas)


def all_gather_seconds(num_bytes: int, replicas: ReplicaLinks) -> float:
    """Return the seconds of an all-gather; each replica has `num_bytes` bytes afterwards."""
    return _one_way(num_bytes, num_bytes, replicas)


def _one_way(inside_bytes: float, across_bytes: float, replicas: ReplicaLinks) -> float:
    """Return the seconds of half an all-reduce: one step inside hosts and one between hosts.

    Args:
        inside_bytes: Bytes of one replica in the step inside hosts.
        across_bytes: Bytes of one group of replicas in the step between hosts.
        replicas: Replicas that sum their gradients, and their links.
    """
    shared = across_bytes * replicas.groups_per_host
    inside = _step(inside_bytes, replicas.ranks_per_host, replicas.inside)
    return inside + _step(shared, replicas.num_hosts, replicas.across)


def _step(num_bytes: float, parties: int, link: Link) -> float:
    """Return the seconds in which each party sends (parties - 1) / parties of its bytes.

    Args:
        num_bytes: Bytes that each party has.
        parties: Number of ranks or hosts that exchange data.
        link: Link from each party to the others.
    """
    if parties == 1:
        return 0.0
    return link.latency_seconds + num_bytes * (parties - 1) / parties / link.bytes_per_second
