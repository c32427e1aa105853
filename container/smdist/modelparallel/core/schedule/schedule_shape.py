# SPDX-License-Identifier: Apache-2.0
"""Shape of a pipeline: numbers of ranks, stages and microbatches, and the rank of each stage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Numbers of ranks, microbatches and stages of a pipeline.

    Attributes:
        num_ranks: Number of ranks.
        num_microbatches: Number of microbatches of one step.
        virtual_stages: Number of stages on each rank.
        active_microbatches: Largest number of microbatches that a rank may hold. None for schedules
            without such a limit.
    """

    num_ranks: int
    num_microbatches: int
    virtual_stages: int = 1
    active_microbatches: int | None = None

    @property
    def num_stages(self) -> int:
        """Number of stages on all ranks."""
        return self.num_ranks * self.virtual_stages


def loop(shape: Shape) -> tuple[int, ...]:
    """Return the rank of each stage in a loop: stages 0 1 2 3 are on ranks 0 1 0 1."""
    return tuple(range(shape.num_ranks)) * shape.virtual_stages


def vee(shape: Shape) -> tuple[int, ...]:
    """Return the rank of each stage in a V: stages 0 1 2 3 are on ranks 0 1 1 0."""
    down = tuple(range(shape.num_ranks))
    return down + down[::-1]
