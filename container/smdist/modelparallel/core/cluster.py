# SPDX-License-Identifier: Apache-2.0
"""The devices that a plan is for, and what joins them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sagemaker_dist.errors import require
from smdist.modelparallel.core.cost import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What one rank computes with.

    Attributes:
        name: For people.
        memory_bytes: What a rank may use of it; None where nobody said.
        flops_per_second: At its peak in the model's dtype, for estimates.
        bytes_per_second: Of its memory, for estimates.
    """

    name: str = "cpu"
    memory_bytes: int | None = None
    flops_per_second: float | None = None
    bytes_per_second: float | None = None


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
        OptionError: A number below 1.
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
                isinstance(number, int) and number >= 1,
                what=f"{name} is {number!r}",
                why="a cluster has at least one rank",
                mend="Pass an integer of at least 1",
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
