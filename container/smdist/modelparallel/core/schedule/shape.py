# SPDX-License-Identifier: Apache-2.0
"""What a schedule is made for: its numbers, and which rank each stage is on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The numbers of one pipeline.

    Attributes:
        num_ranks: Ranks.
        num_microbatches: Microbatches of one step.
        virtual_stages: Stages on each rank.
        active_microbatches: How many may be on their way at once, for schedules that take it.
    """

    num_ranks: int
    num_microbatches: int
    virtual_stages: int = 1
    active_microbatches: int | None = None

    @property
    def num_stages(self) -> int:
        """Stages on all ranks."""
        return self.num_ranks * self.virtual_stages


def loop(shape: Shape) -> tuple[int, ...]:
    """Round after round through the ranks: stages 0 1 2 3 are on ranks 0 1 0 1."""
    return tuple(range(shape.num_ranks)) * shape.virtual_stages


def vee(shape: Shape) -> tuple[int, ...]:
    """Down and up again: stages 0 1 2 3 are on ranks 0 1 1 0, the loss where the input is."""
    down = tuple(range(shape.num_ranks))
    return down + down[::-1]
