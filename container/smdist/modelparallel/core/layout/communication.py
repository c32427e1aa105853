# SPDX-License-Identifier: Apache-2.0
"""Seconds of collectives between ranks of a cluster, by bytes, number of ranks and links.

A group has k ranks on each of h hosts. A reduce-scatter or an all-gather of n bytes moves

    inside a host     (k - 1) / k n        by each rank
    between hosts     (h - 1) / h n / k    by each rank, over its share of the host's network

which is the least that any algorithm can send (Patarasu and Yuan, 2009); rings of NCCL over all
network cards of a host, and this project's engine, send as much. The two parts take turns here. A
ring has a latency for each of its steps, the engine for each kind of link; the latter is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.layout.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks of one collective.

    Attributes:
        per_host: Ranks of the group on each host.
        hosts: Hosts that have ranks of the group.
    """

    per_host: int
    hosts: int

    @property
    def size(self) -> int:
        """Number of ranks of the group."""
        return self.per_host * self.hosts


def group(machine: Machine, size: int, stride: int) -> Group:
    """Return the group of `size` ranks of which each is `stride` ranks after the one before.

    Args:
        machine: Machine with the cluster.
        size: Number of ranks of the group.
        stride: Distance of neighbours of the group, in ranks.
    """
    per_host = max(1, min(size, machine.cluster.ranks_per_host // stride))
    while size % per_host:  # groups that do not divide a host evenly use the next smaller part
        per_host -= 1
    return Group(per_host=per_host, hosts=size // per_host)


def one_way_seconds(machine: Machine, num_bytes: float, ranks: Group) -> float:
    """Return the seconds of a reduce-scatter or an all-gather.

    Args:
        machine: Machine with links and their efficiency.
        num_bytes: Bytes of the whole value.
        ranks: Ranks that take part.
    """
    if ranks.size == 1 or num_bytes <= 0:
        return 0.0
    inside = _step(machine, num_bytes, ranks.per_host, machine.cluster.inside)
    share = num_bytes / ranks.per_host
    return inside + _step(machine, share, ranks.hosts, machine.cluster.across)


def all_reduce_seconds(machine: Machine, num_bytes: float, ranks: Group) -> float:
    """Return the seconds of an all-reduce, which is a reduce-scatter and an all-gather.

    Args:
        machine: Machine with links and their efficiency.
        num_bytes: Bytes of the value of one rank.
        ranks: Ranks that take part.
    """
    return 2 * one_way_seconds(machine, num_bytes, ranks)


def _step(machine: Machine, num_bytes: float, parties: int, link: Link) -> float:
    if parties == 1:
        return 0.0
    moved = num_bytes * (parties - 1) / parties
    return link.latency_seconds + moved / (link.bytes_per_second * machine.link.at(num_bytes))
