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
    """Unit (undivided module) that limits the speed of the pipeline.

    The unit takes more than 2 % longer than the time of the whole model divided by the number of
    ranks. So no partition can give all ranks the same load.

    Attributes:
        unit: Name of the unit.
        share: Time of the unit as a fraction of the whole model's time, from 0 to 1.
        useful_stages: Number of stages, one on each rank, with which the pipeline is almost as
            fast. The slowest rank takes at most 2 % longer.
    """

    unit: str
    share: float
    useful_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Partition of a model: the units (undivided modules) of each stage, and the stages' costs.

    Attributes:
        stages: Names of units by stage, in the order of execution. Each unit is listed once. A
            unit that several stages compute, such as a mask, is listed on the first of them.
        rank_of: Rank of each stage.
        placement: Stages of all nodes of the graph, and the values sent between stages.
        costs: Cost of one microbatch on each stage.
        loads: Seconds of one microbatch on each stage, including the time of its messages.
        state_bytes: Bytes of parameters, gradients and optimizer state, by stage.
        peak_bytes: Largest number of bytes that each rank holds: state, activations of all
            microbatches in flight, and workspace.
        bottleneck: Unit that takes longer than the whole model's time divided by the number of
            ranks, and so limits the pipeline's speed; None if there is none.
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
        """Stage of each unit (undivided module), by the unit's name."""
        return {name: number for number, stage in enumerate(self.stages) for name in stage}

    @property
    def imbalance(self) -> float:
        """Largest load divided by the mean load: 1.0 if all loads are equal, or all are 0."""
        mean = sum(self.loads) / len(self.loads)
        return max(self.loads) / mean if mean else 1.0
