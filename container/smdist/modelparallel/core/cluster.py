# SPDX-License-Identifier: Apache-2.0
"""Devices of a cluster, and the links between its ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sagemaker_dist.errors import require
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.quantities import require_amount, require_bytes, shown

MOST_RANKS: Final = 1_000_000  # far more than the largest known clusters have


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Device (GPU or CPU) of one rank.

    Attributes:
        name: Name of the device, shown in reports.
        memory_bytes: Bytes of device memory that a rank may use; None if unknown.
        flops_per_second: Peak floating-point operations per second in the model's dtype; None if
            unknown. Estimates of costs use it.
        bytes_per_second: Memory bandwidth; None if unknown. Estimates of costs use it.

    Raises:
        OptionError: The memory is not a positive integer, or a rate is below 1.
    """

    name: str = "cpu"
    memory_bytes: int | None = None
    flops_per_second: float | None = None
    bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        if self.memory_bytes is not None:
            require_bytes("memory_bytes of a device", self.memory_bytes, about="memory_bytes")
        for name in ("flops_per_second", "bytes_per_second"):
            rate = getattr(self, name)
            if rate is not None:
                why = "estimates of costs divide by it"
                require_amount(
                    f"{name} of a device", rate, why=why, least=1.0, most=1e30, about=name
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Cluster of equal hosts with equal devices, one rank on each device.

    Attributes:
        num_hosts: Number of hosts.
        ranks_per_host: Number of ranks on each host.
        inside: Link between two ranks of the same host.
        across: Link between two ranks of different hosts while all ranks of a host send: the share
            of one rank of its host's network.
        device: Device of each rank.

    Raises:
        OptionError: A number is below 1, or there are more than a million ranks.
    """

    num_hosts: int = 1
    ranks_per_host: int = 1
    inside: Link = field(default_factory=Link)
    across: Link = field(default_factory=Link)
    device: Device = field(default_factory=Device)

    def __post_init__(self) -> None:
        for name in ("num_hosts", "ranks_per_host"):
            number = getattr(self, name)
            require(
                isinstance(number, int) and not isinstance(number, bool) and number >= 1,
                what=f"{name} is {shown(number)}",
                why="a cluster has at least one rank",
                hint="Pass an integer of at least 1",
                about=name,
            )
        require(
            self.size <= MOST_RANKS,
            what=f"num_hosts times ranks_per_host is {shown(self.size)}",
            why=f"a plan can have at most {MOST_RANKS:,} ranks",
            hint="Pass a smaller num_hosts or ranks_per_host",
            about="num_hosts",
        )

    @property
    def size(self) -> int:
        """Number of ranks in the cluster."""
        return self.num_hosts * self.ranks_per_host

    def link(self, rank: int, other: int) -> Link:
        """Return the link between two ranks of the cluster.

        Ranks are numbered host by host. If both ranks are equal, the result is a link on which
        messages take no time.
        """
        if rank == other:
            return Link()
        is_inside = rank // self.ranks_per_host == other // self.ranks_per_host
        return self.inside if is_inside else self.across
