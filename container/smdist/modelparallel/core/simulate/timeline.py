# SPDX-License-Identifier: Apache-2.0
"""What a simulated step looks like: when every rank does what, and what it holds meanwhile.

    step      |<---------------------- step_seconds ---------------------->|
    pipeline  |<-------- pipeline_seconds -------->|
    rank 0    F0 F1 F2 F3 B0 .. B1 .. B2 .. B3 ... reduce reduce reduce ...
    rank 1    .. F0 B0 F1 B1 F2 B2 F3 B3 reduce reduce reduce .............

A rank is busy while it computes (F, B, I, W) and idle for the rest of `pipeline_seconds`: that is
the bubble of the closed forms. Reductions across replicas use the network and not the rank, so
they count in neither; what they add to the step is in `exposed_seconds`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import sub

from smdist.modelparallel.core.schedule.actions import Action, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One action of one rank.

    Attributes:
        start: Seconds from the beginning of the step.
        end: Likewise.
        held_bytes: What the rank holds while it lasts, all told.
    """

    rank: int
    action: Action
    start: float
    end: float
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """Gradients of one rank, or of one of its stages, summed across replicas.

    Attributes:
        stage: Whose gradients; None stands for all stages of the rank.
        start: Seconds from the beginning of the step.
        end: Likewise.
    """

    rank: int
    stage: int | None
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What a rank holds when it holds the most.

    Attributes:
        place: Of the action at which this is so, in the rank's order.
        static_bytes: Weights, gradients, optimizer state.
        saved_bytes: Between forward and backward passes, of all microbatches in flight.
        receive_bytes: Buffers for what other ranks send.
        workspace_bytes: Of the action itself.
    """

    place: int = 0
    static_bytes: int = 0
    saved_bytes: int = 0
    receive_bytes: int = 0
    workspace_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All four."""
        kept = self.static_bytes + self.saved_bytes
        return kept + self.receive_bytes + self.workspace_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One simulated step.

    Attributes:
        schedule: What was simulated.
        starts: Seconds, by rank and place in its order.
        ends: Likewise.
        held_bytes: What a rank holds during each action, likewise.
        travel_seconds: By rank: idle while what it waits for was under way.
        peaks: By rank.
        reductions: In the order of ranks.
    """

    schedule: Schedule
    starts: tuple[tuple[float, ...], ...]
    ends: tuple[tuple[float, ...], ...]
    held_bytes: tuple[tuple[int, ...], ...]
    travel_seconds: tuple[float, ...]
    peaks: tuple[Peak, ...]
    reductions: tuple[Reduction, ...] = ()

    @property
    def pipeline_seconds(self) -> float:
        """When the last action ends."""
        return max((ends[-1] for ends in self.ends if ends), default=0.0)

    @property
    def step_seconds(self) -> float:
        """When the last action and the last reduction have ended."""
        return max([self.pipeline_seconds, *(reduction.end for reduction in self.reductions)])

    @property
    def busy_seconds(self) -> tuple[float, ...]:
        """Computing, by rank."""
        return tuple(sum(map(sub, *times)) for times in zip(self.ends, self.starts, strict=True))

    @property
    def idle_seconds(self) -> tuple[float, ...]:
        """Not computing while the pipeline lasts, by rank."""
        return tuple(self.pipeline_seconds - busy for busy in self.busy_seconds)

    @property
    def bubble_fraction(self) -> float:
        """Idle share of ranks times `pipeline_seconds`, from 0 to 1."""
        area = self.pipeline_seconds * len(self.ends)
        return sum(self.idle_seconds) / area if area else 0.0

    @property
    def exposed_seconds(self) -> tuple[float, ...]:
        """By rank: idle because bytes were under way, between stages or across replicas.

        A rank that waits for another one to compute is in a bubble; it is exposed for the part of
        the wait in which the message had left. Its reductions are exposed beyond its last action.
        """
        exposed = list(self.travel_seconds)
        last = [ends[-1] if ends else 0.0 for ends in self.ends]
        for reduction in self.reductions:
            exposed[reduction.rank] += max(0.0, reduction.end - last[reduction.rank])
            last[reduction.rank] = max(last[reduction.rank], reduction.end)
        return tuple(exposed)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The most that a rank holds at any time, by rank."""
        return tuple(peak.total_bytes for peak in self.peaks)

    def events(self) -> Iterator[Event]:
        """Every action, rank by rank, in order."""
        for rank, order in enumerate(self.schedule.orders):
            times = zip(
                order, self.starts[rank], self.ends[rank], self.held_bytes[rank], strict=True
            )
            for action, start, end, held in times:
                yield Event(rank=rank, action=action, start=start, end=end, held_bytes=held)
