# SPDX-License-Identifier: Apache-2.0
"""What a pipeline does, as data: for each rank the order of its actions.

    rank 0   F0 F1 F2 F3 B0 B1 B2 B3        stage 0 = rank 0
    rank 1      F0 F1 F2 F3 B0 B1 B2 B3     stage 1 = rank 1

Schedules say who does what in which order, never when: the simulator finds the times, the
executor takes them as they come. Sending and receiving follow from the edges between stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property


class Do(str, Enum):
    """What an action computes."""

    F = "F"  # forward
    B = "B"  # the whole backward pass: I and W in one
    I = "I"  # gradients of the stage's inputs  # noqa: E741  the field's name
    W = "W"  # gradients of the stage's parameters, at any time after I


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One microbatch through one stage, printed as `F0` or, with several stages a rank, `2F0`."""

    do: Do
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.do.value}{self.microbatch}"


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties
class Schedule:
    """One step of a pipeline.

    Attributes:
        name: As users ask for it: "interleaved".
        rank_of: The rank that each stage is on, by stage. Stage s passes on to stage s + 1.
        num_microbatches: How many go through.
        orders: The actions of each rank, in order, by rank.
    """

    name: str
    rank_of: tuple[int, ...]
    num_microbatches: int
    orders: tuple[tuple[Action, ...], ...]

    @property
    def num_ranks(self) -> int:
        """How many ranks the pipeline has."""
        return len(self.orders)

    @property
    def num_stages(self) -> int:
        """How many stages it has: ranks times virtual stages."""
        return len(self.rank_of)

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """The stages on each rank, by rank."""
        return tuple(
            tuple(stage for stage, of in enumerate(self.rank_of) if of == rank)
            for rank in range(self.num_ranks)
        )

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients are computed apart from input gradients."""
        return any(action.do is Do.W for order in self.orders for action in order)
