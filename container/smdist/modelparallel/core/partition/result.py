# SPDX-License-Identifier: Apache-2.0
"""Result of a partition, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smdist.modelparallel.core.cost import NodeCost
from smdist.modelparallel.core.note import Note
from smdist.modelparallel.core.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """Unit that takes longer than an even share, and so alone limits the pipeline's speed.

    Attributes:
        unit: Name of the unit.
        share: Fraction of the whole model's time, from 0 to 1.
        useful_stages: Number of stages beyond which the slowest rank gains less than 2 %.
    """

    unit: str
    share: float
    useful_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Units on stages, and the costs of these stages.

    Attributes:
        stages: Names of units by stage, in the order of execution. Each unit is listed once; a
            replicated unit is listed on its first stage.
        rank_of: Rank of each stage.
        placement: Stages of all other nodes, and the values that travel.
        costs: Cost of one microbatch, by stage.
        loads: Seconds of each stage with its exposed communication, by stage.
        state_bytes: Bytes of parameters, gradients and optimizer state, by stage.
        peak_bytes: Bytes of state, of the saved values of all microbatches in flight, and of
            workspace, by rank.
        bottleneck: Unit that limits the gain, or None.
        notes: Notes on the bottleneck and on units that were moved.
    """

    stages: tuple[tuple[str, ...], ...]
    rank_of: tuple[int, ...]
    placement: Placement
    costs: tuple[NodeCost, ...]
    loads: tuple[float, ...]
    state_bytes: tuple[int, ...]
    peak_bytes: tuple[int, ...]
    bottleneck: Bottleneck | None = None
    notes: tuple[Note, ...] = ()

    @property
    def stage_of(self) -> Mapping[str, int]:
        """Stage of each unit, by the unit's name."""
        return {name: number for number, stage in enumerate(self.stages) for name in stage}

    @property
    def imbalance(self) -> float:
        """Largest load divided by the mean load: 1 is even. Stages that cost nothing are even."""
        mean = sum(self.loads) / len(self.loads)
        return max(self.loads) / mean if mean else 1.0
