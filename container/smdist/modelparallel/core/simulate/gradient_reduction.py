# SPDX-License-Identifier: Apache-2.0
"""Time of summing gradients over the replicas of a stage (all-reduce).

The formula describes the all-reduce of this project's engine; see docs/architecture.md, "How a
gradient travels". Its variables are

    n               bytes of the gradients of one replica
    h, k            number of hosts, and number of replicas on each host
    g               number of groups of replicas that use a host's network at the same time, because
                    all stages on a host finish at about the same time
    inside, across  bandwidth between ranks of one host, and of a host's network
    L_in, L_ac      latency of a message between ranks of one host, and between hosts

An all-reduce has four steps:

    1. reduce-scatter inside a host    each rank sends (k - 1)/k n bytes of its gradients
    2. reduce-scatter between hosts    each host sends (h - 1)/h n bytes of its sums
    3. all-gather between hosts        each host sends (h - 1)/h n bytes of the result
    4. all-gather inside a host        each rank sends (k - 1)/k n bytes of the result

    all-reduce = 2 (k-1)/k n / inside + 2 (h-1)/h n g / across + 2 L_in + 2 L_ac

The engine overlaps steps inside hosts with steps between hosts. So a large all-reduce takes less
time than this formula; the least possible time is that of the slower kind of step alone. A
reduce-scatter has steps 1 and 2, and an all-gather has steps 3 and 4. With several replicas on a
host, step 2 sends sums of 16-bit numbers in fp32, so it takes longer.

No algorithm that computes the sums on the hosts themselves can send less than (h - 1)/h n bytes per
host in each half (Patarasu and Yuan, 2009). A ring sends the same number of bytes, but has
2 (h - 1) latencies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Link

FUSION_BYTES: Final = 25 * 2**20  # largest bucket of gradients, by default
_FP32_BYTES: Final = 4
_BUCKETS: Final = 16  # number of buckets of a stage, unless they are too small or too large
_SMALL_BYTES: Final = 2**20  # size of a bucket that is not divided further


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLinks:
    """Replicas of one stage, and the links between them.

    Attributes:
        num_hosts: Number of hosts that have replicas.
        ranks_per_host: Largest number of replicas on one host.
        inside: Link between two ranks of the same host.
        across: Link of a host to the others, which its ranks share.
        groups_per_host: Number of groups of replicas that use a host's network at the same time.
    """

    num_hosts: int
    ranks_per_host: int
    inside: Link
    across: Link
    groups_per_host: int = 1


def replicas_on(cluster: Cluster, ranks: Sequence[int]) -> ReplicaLinks:
    """Return the links between the given ranks of a cluster, which are replicas of one stage.

    The other ranks of a host are assumed to form groups of the same size (replicas of other
    stages), which sum their gradients over the same network at the same time. A host's network has
    the bandwidth of `cluster.across` for each of its ranks.
    """
    across = cluster.across
    by_host = Counter(rank // cluster.ranks_per_host for rank in ranks)
    most = max(by_host.values())
    return ReplicaLinks(
        num_hosts=len(by_host),
        ranks_per_host=most,
        inside=cluster.inside,
        across=replace(across, bytes_per_second=across.bytes_per_second * cluster.ranks_per_host),
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


def bucket_bytes(num_bytes: int, fusion_bytes: int = FUSION_BYTES) -> int:
    """Return the largest size of the buckets into which the gradients of a stage are divided.

    A small stage has several buckets, too, so that most of them are sent during the last backward
    pass. A parameter with more bytes has a bucket of its own.

    Args:
        num_bytes: Bytes of all gradients of the stage.
        fusion_bytes: Limit of the user.
    """
    return min(fusion_bytes, max(num_bytes // _BUCKETS, _SMALL_BYTES))


def end_bucket_bytes(num_bytes: int, parameter_bytes: int) -> int:
    """Return the bytes of the first or of the last bucket that a backward pass completes.

    Args:
        num_bytes: Bytes of all gradients of the stage.
        parameter_bytes: Bytes of the first or last gradient of the pass: that of the stage's last
            or first parameter.
    """
    return min(num_bytes, max(bucket_bytes(num_bytes), parameter_bytes))


def exposed_seconds(
    reduce_seconds: float, last_seconds: float, first_share: float, backward_seconds: float
) -> float:
    """Return the seconds of an all-reduce of gradients that follow the last backward pass.

    The pass computes gradients evenly. Each bucket is sent when it is complete and the one before
    it has been sent: a slow network sends without a pause from the first bucket on, a fast one
    waits for the last.

    Args:
        reduce_seconds: Seconds of the all-reduce of all gradients of a stage.
        last_seconds: Seconds of the all-reduce of the last bucket alone.
        first_share: Bytes of the first bucket as a fraction of all, from 0 to 1.
        backward_seconds: Seconds of the stage's last backward pass.
    """
    return max(last_seconds, reduce_seconds - backward_seconds * (1.0 - first_share))


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
    """Return the seconds of a reduce-scatter or an all-gather.

    Args:
        inside_bytes: Bytes of one replica's gradients, for the exchange inside a host.
        across_bytes: Bytes of the same gradients, for the exchange between hosts. The data type may
            be wider there.
        replicas: Replicas of one stage, and the links between them.
    """
    shared = across_bytes * replicas.groups_per_host
    inside = _step(inside_bytes, replicas.ranks_per_host, replicas.inside)
    return inside + _step(shared, replicas.num_hosts, replicas.across)


def _step(num_bytes: float, parties: int, link: Link) -> float:
    """Return the seconds of one exchange between ranks or hosts.

    Each of them sends (parties - 1) / parties of its bytes.

    Args:
        num_bytes: Bytes that each party has.
        parties: Number of ranks or hosts that exchange data.
        link: Link from each party to the others.
    """
    if parties == 1:
        return 0.0
    return link.latency_seconds + num_bytes * (parties - 1) / parties / link.bytes_per_second
