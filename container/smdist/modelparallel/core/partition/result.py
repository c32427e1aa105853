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
    """Unit (undivided module) that takes more than its rank's even share of the model's time.

    No partition can make the pipeline faster than this unit.

    Attributes:
        unit: Name of the unit.
        share: Time of the unit as a fraction of the whole model's time, from 0 to 1.
        useful_stages: Smallest number of stages with which the slowest stage is at most 2 % slower
            than in the partition.
    """

    unit: str
    share: float
    useful_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Partition of a model: the units (undivided modules) of each stage, and the stages' costs.

    Attributes:
        stages: Names of units by stage, in the order of execution. Each unit is listed once; a
            replicated unit is listed on its first stage.
        rank_of: Rank of each stage.
        placement: Stages of all nodes of the graph, and the values sent between stages.
        costs: Cost of one microbatch on each stage.
        loads: Seconds of one microbatch on each stage, including the time of its messages.
        state_bytes: Bytes of parameters, gradients and optimizer state, by stage.
        peak_bytes: Largest number of bytes that each rank holds: state, activations of all
            microbatches in flight, and workspace.
        bottleneck: Unit that takes more than an even share of the time; None if there is none.
        notes: Notes for users, such as advice about the bottleneck.
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
        """Largest load divided by the mean load: 1.0 if all loads are equal, or all are 0."""
        mean = sum(self.loads) / len(self.loads)
        return max(self.loads) / mean if mean else 1.0
