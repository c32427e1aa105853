# SPDX-License-Identifier: Apache-2.0
"""What a partition comes to, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smdist.modelparallel.core.cost import NodeCost
from smdist.modelparallel.core.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """A unit that takes longer than an even share, so that it alone sets the pace.

    Attributes:
        unit: Its name.
        share: Its part of the time of the whole model, from 0 to 1.
        useful_stages: With more than these, the slowest rank is less than 2 % faster.
    """

    unit: str
    share: float
    useful_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Units on stages, and what that costs.

    Attributes:
        stages: Names of units by stage, in the order of execution. Each unit stands once, also
            one that is replicated: where it runs first.
        rank_of: The rank of each stage.
        placement: Where all else runs and what travels.
        costs: Of one microbatch in each stage, by stage.
        loads: Seconds of each stage with its exposed communication, by stage.
        state_bytes: Parameters, gradients and optimizer state, by stage.
        peak_bytes: State, what is kept of all microbatches in flight, and workspace, by rank.
        bottleneck: The unit that caps the gain, if one does.
        notes: What a person should know, in sentences.
    """

    stages: tuple[tuple[str, ...], ...]
    rank_of: tuple[int, ...]
    placement: Placement
    costs: tuple[NodeCost, ...]
    loads: tuple[float, ...]
    state_bytes: tuple[int, ...]
    peak_bytes: tuple[int, ...]
    bottleneck: Bottleneck | None = None
    notes: tuple[str, ...] = ()

    @property
    def stage_of(self) -> Mapping[str, int]:
        """The stage of each unit, by its name."""
        return {name: number for number, stage in enumerate(self.stages) for name in stage}

    @property
    def imbalance(self) -> float:
        """The largest load over the mean one: 1 is even. Stages that cost nothing are even."""
        mean = sum(self.loads) / len(self.loads)
        return max(self.loads) / mean if mean else 1.0
