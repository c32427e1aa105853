# SPDX-License-Identifier: Apache-2.0
"""Data of pictures of plans and runs: bars for stages, memory and timelines.

The classes contain plain values and do not need matplotlib.
"""

from __future__ import annotations

from dataclasses import dataclass

from smdist.modelparallel.core.schedule.actions import Do


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBar:
    """Segment of a stage's bar: one unit (undivided module), and its seconds for one microbatch."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBar:
    """Bar of one stage: the time of its units, with the first unit at the bottom.

    Attributes:
        rank: Rank of the stage.
        units: Segments of the bar, one for each unit (undivided module).
        between_seconds: Seconds of operations between units, and of the additional time of split
            backward passes.
    """

    rank: int
    units: tuple[UnitBar, ...]
    between_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of one microbatch on the stage, forward and backward together."""
        return sum(unit.seconds for unit in self.units) + self.between_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBar:
    """Bar of a chart: the peak memory of one rank, divided into its parts, in bytes."""

    state_bytes: int
    activation_bytes: int
    receive_bytes: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Bar in a timeline: one action, or one sum of gradients.

    Attributes:
        rank: Rank in the pipeline.
        do: Kind of action; None for a sum of gradients.
        chunk: Index of the stage among the stages of its rank.
        microbatch: Number of the microbatch; 0 for a sum of gradients.
        start: Start in seconds from the beginning of the step.
        end: End in seconds from the beginning of the step.
    """

    rank: int
    do: Do | None
    chunk: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Content of a plan's picture: titles, and bars for stages, memory and time.

    Attributes:
        title: Title of the picture, one line.
        subtitle: Line below the title.
        largest: Name of the slowest unit (undivided module), which has its own colour; "" if there
            is no such unit.
        stages: Bar of each stage.
        memory: Bar of each rank of one pipeline.
        limit_bytes: Bytes that a rank may use; None if unknown.
        spans: Bars of the step's timeline, in any order.
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
        """Number of ranks of one pipeline."""
        return len(self.memory)

    @property
    def end(self) -> float:
        """Seconds from the beginning to the end of the step."""
        return max((span.end for span in self.spans), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSheet:
    """Content of a timeline of one step.

    Attributes:
        title: Title of the panel, one line.
        num_ranks: Number of ranks of the pipeline.
        spans: Bars of the timeline, in any order.
    """

    title: str
    num_ranks: int
    spans: tuple[Span, ...]

    @property
    def end(self) -> float:
        """Seconds from the beginning to the end of the step."""
        return max((span.end for span in self.spans), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSheet:
    """Content of a run's picture: timelines below each other with the same time axis.

    Attributes:
        title: Title of the picture, one line.
        subtitle: Line below the title.
        panels: Timelines from top to bottom.
    """

    title: str
    subtitle: str
    panels: tuple[StepSheet, ...]
