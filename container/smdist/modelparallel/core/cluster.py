# SPDX-License-Identifier: Apache-2.0
"""The devices that a plan is for, and what joins them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sagemaker_dist.errors import require
from smdist.modelparallel.core.amounts import require_amount, require_bytes, shown
from smdist.modelparallel.core.cost import Link

MOST_RANKS: Final = 1_000_000  # several times the largest machine that there is


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What one rank computes with.

    Attributes:
        name: For people.
        memory_bytes: What a rank may use of it; None where nobody said.
        flops_per_second: At its peak in the model's dtype, for estimates.
        bytes_per_second: Of its memory, for estimates.

    Raises:
        OptionError: Memory that is no number of bytes, or a rate that is not above 0.
    """

    name: str = "cpu"
    memory_bytes: int | None = None
    flops_per_second: float | None = None
    bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        if self.memory_bytes is not None:
            require_bytes("memory_bytes of a device", self.memory_bytes)
        for name in ("flops_per_second", "bytes_per_second"):
            rate = getattr(self, name)
            if rate is not None:
                why = "estimates divide by it"
                require_amount(f"{name} of a device", rate, why=why, least=1.0, most=1e30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal hosts with equal devices, one rank a device.

    Attributes:
        num_hosts: Hosts.
        ranks_per_host: Ranks on each.
        inside: Between two ranks of one host.
        across: Between two ranks of different hosts.
        device: What each rank computes with.

    Raises:
        OptionError: A number below 1, or more than a million ranks.
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
                mend="Pass an integer of at least 1",
            )
        require(
            self.size <= MOST_RANKS,
            what=f"the cluster has {shown(self.size)} ranks",
            why=f"plans are for {MOST_RANKS:,} ranks at most",
            mend="Use fewer num_hosts or ranks_per_host",
        )

    @property
    def size(self) -> int:
        """How many ranks there are in all."""
        return self.num_hosts * self.ranks_per_host

    def link(self, rank: int, other: int) -> Link:
        """What joins two ranks, numbered host by host; a rank and itself are joined by nothing."""
        if rank == other:
            return Link()
        is_inside = rank // self.ranks_per_host == other // self.ranks_per_host
        return self.inside if is_inside else self.across
