# SPDX-License-Identifier: Apache-2.0
"""What a picture of a plan or a run shows, as plain data: nothing here draws or plans."""

from __future__ import annotations

from dataclasses import dataclass

from smdist.modelparallel.core.schedule.actions import Do


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBar:
    """What one unit takes of its stage, forward and backward of one microbatch."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBar:
    """One stage: its units in order, the first at the bottom.

    Attributes:
        between_seconds: What the stage does outside of its units, glue and what the split adds.
    """

    rank: int
    units: tuple[UnitBar, ...]
    between_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Of all its units, and between them."""
        return sum(unit.seconds for unit in self.units) + self.between_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBar:
    """What one rank holds when it holds the most, by part."""

    state_bytes: int
    activation_bytes: int
    receive_bytes: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One action of a step: when, on which rank, and of which of the rank's stages.

    Attributes:
        chunk: Which of its rank's stages, counted from 0.
        do: None is the sum of gradients, over replicas or of tied weights.
    """

    rank: int
    do: Do | None
    chunk: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """All of one picture.

    Attributes:
        title: One line.
        subtitle: One line, smaller.
        largest: The unit that stands out, or "".
        stages: By stage.
        memory: By rank of one pipeline.
        limit_bytes: What a rank may use, or None.
        spans: In any order.
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
        """Of one pipeline."""
        return len(self.memory)

    @property
    def end(self) -> float:
        """When the step is over."""
        return max((span.end for span in self.spans), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSheet:
    """One step alone.

    Attributes:
        title: One line.
        num_ranks: Of the pipeline.
        spans: In any order.
    """

    title: str
    num_ranks: int
    spans: tuple[Span, ...]

    @property
    def end(self) -> float:
        """When the step is over."""
        return max((span.end for span in self.spans), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSheet:
    """Several steps, one below the other, on one scale.

    Attributes:
        title: One line.
        subtitle: One line, smaller.
        panels: From top to bottom.
    """

    title: str
    subtitle: str
    panels: tuple[StepSheet, ...]
