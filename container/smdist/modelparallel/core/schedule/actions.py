# SPDX-License-Identifier: Apache-2.0
"""Schedule of a pipeline as data: the actions of each rank, in order.

    rank 0   F0 F1 F2 F3 B0 B1 B2 B3        stage 0 = rank 0
    rank 1      F0 F1 F2 F3 B0 B1 B2 B3     stage 1 = rank 1

A schedule has the order of actions, not their times. The simulator computes times; the executor
runs each action when its inputs have arrived. Sends and receives are not part of a schedule: they
follow from the values that stages exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property


class Do(str, Enum):
    """Kind of an action: forward pass (F) or backward pass (B).

    A backward pass may be split into two actions: input gradients (I) and weight gradients (W).
    """

    F = "F"  # forward pass
    B = "B"  # the whole backward pass: I and W together
    I = "I"  # gradients of the stage's inputs  # noqa: E741  name in the literature
    W = "W"  # gradients of the stage's parameters, at any time after I


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """Pass of one microbatch through one stage; `2F0` is stage 2, forward, microbatch 0."""

    do: Do
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.do.value}{self.microbatch}"


@dataclass(frozen=True, kw_only=True)  # no slots: the class has cached properties
class Schedule:
    """Order of the actions of each rank in one step of a pipeline.

    Attributes:
        name: Name of the kind of schedule, such as "1f1b".
        rank_of: Rank of each stage, by stage.
        num_microbatches: Number of microbatches of a step.
        orders: Actions of each rank, by rank, in the order in which the rank runs them.
    """

    name: str
    rank_of: tuple[int, ...]
    num_microbatches: int
    orders: tuple[tuple[Action, ...], ...]

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the pipeline."""
        return len(self.orders)

    @property
    def num_stages(self) -> int:
        """Number of stages on all ranks."""
        return len(self.rank_of)

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """Stages on each rank, by rank, in ascending order."""
        return tuple(
            tuple(stage for stage, of in enumerate(self.rank_of) if of == rank)
            for rank in range(self.num_ranks)
        )

    @property
    def splits_backward(self) -> bool:
        """True if weight gradients are computed separately from input gradients."""
        return any(action.do is Do.W for order in self.orders for action in order)
