# SPDX-License-Identifier: Apache-2.0
"""Data of a picture as plain values; planning fills it, drawing reads it."""

from __future__ import annotations

from dataclasses import dataclass

from smdist.modelparallel.core.schedule.actions import Do


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBar:
    """Time of one unit: seconds of forward and backward of one microbatch."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBar:
    """Time of one stage: its units in order, the first at the bottom of the bar.

    Attributes:
        between_seconds: Time outside of the units: glue code and the cost of the split.
    """

    rank: int
    units: tuple[UnitBar, ...]
    between_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the time of the whole stage, in seconds."""
        return sum(unit.seconds for unit in self.units) + self.between_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBar:
    """Peak memory of one rank, by part."""

    state_bytes: int
    activation_bytes: int
    receive_bytes: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One action of a step: its rank, its stage and its time.

    Attributes:
        chunk: Index of the stage among the stages of its rank.
        do: The action; None for a sum of gradients over replicas or of tied weights.
        start: Seconds since the step began.
        end: Seconds since the step began.
    """

    rank: int
    do: Do | None
    chunk: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """All data of a plan's picture.

    Attributes:
        title: One line.
        subtitle: One line, in smaller letters.
        largest: Name of the unit to colour, or "".
        stages: One bar per stage.
        memory: One bar per rank of one pipeline.
        limit_bytes: Memory that a rank may use, or None.
        spans: Actions of the step, in any order.
    """

    title: str
    subtitle: str
    largest: str
    stages: tuple[StageBar, ...]
    memory: tuple[MemoryBar, ...]
    limit_bytes: int | None
    spans: tuple[Span, ...]

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks of one pipeline."""
        return len(self.memory)

    @property
    def end(self) -> float:
        """Return the seconds at which the step ends."""
        return max((span.end for span in self.spans), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSheet:
    """Data of one step's timeline.

    Attributes:
        title: One line.
        num_ranks: Number of ranks of the pipeline.
        spans: Actions of the step, in any order.
    """

    title: str
    num_ranks: int
    spans: tuple[Span, ...]

    @property
    def end(self) -> float:
        """Return the seconds at which the step ends."""
        return max((span.end for span in self.spans), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSheet:
    """Data of several steps' timelines, one below the other on one scale of time.

    Attributes:
        title: One line.
        subtitle: One line, in smaller letters.
        panels: Steps from top to bottom.
    """

    title: str
    subtitle: str
    panels: tuple[StepSheet, ...]
