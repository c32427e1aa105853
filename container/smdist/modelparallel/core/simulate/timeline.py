# SPDX-License-Identifier: Apache-2.0
"""Timeline of a simulated step: the times of every rank's actions, and the memory during them.

    step      |<---------------------- step_seconds ---------------------->|
    pipeline  |<-------- pipeline_seconds -------->|
    rank 0    F0 F1 F2 F3 B0 .. B1 .. B2 .. B3 ... reduce reduce reduce ...
    rank 1    .. F0 B0 F1 B1 F2 B2 F3 B3 reduce reduce reduce .............

A rank is busy while it computes (F, B, I, W), and idle for the rest of `pipeline_seconds`; the idle
time is the bubble. Sums of gradients over replicas (reductions) use the network only, so they count
as neither busy nor idle time. `exposed_seconds` has the time that each rank spends only on
communication: reductions after its last action, and waits for inputs that are being sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import sub

from smdist.modelparallel.core.schedule.actions import Action, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedEvent:
    """Action of one rank in a simulated step.

    Attributes:
        rank: Rank in the pipeline.
        action: Kind, stage and microbatch.
        start: Start in seconds from the beginning of the step.
        end: End in seconds from the beginning of the step.
        held_bytes: All bytes that the rank holds during the action.
    """

    rank: int
    action: Action
    start: float
    end: float
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """Time in which the gradients of one rank or of one stage are summed over replicas.

    Attributes:
        rank: Rank in the pipeline.
        stage: Stage of the gradients; None for all stages of the rank together.
        start: Start in seconds from the beginning of the step.
        end: End in seconds from the beginning of the step.
    """

    rank: int
    stage: int | None
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Memory of a rank during the action in which it holds the most bytes.

    Attributes:
        place: Position of this action in the rank's order of actions, from 0.
        static_bytes: Bytes of weights, gradients and optimizer state.
        saved_bytes: Bytes kept from forward to backward passes, of all microbatches in flight.
        receive_bytes: Bytes of buffers for messages of other ranks.
        workspace_bytes: Bytes that are needed only during this action.
    """

    place: int = 0
    static_bytes: int = 0
    saved_bytes: int = 0
    receive_bytes: int = 0
    workspace_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Total number of bytes that the rank holds at its peak."""
        kept = self.static_bytes + self.saved_bytes
        return kept + self.receive_bytes + self.workspace_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Timeline of one simulated step.

    Attributes:
        schedule: Schedule that was simulated.
        starts: Start of each action in seconds, by rank and position in its order.
        ends: End of each action in seconds, by rank and position in its order.
        held_bytes: Bytes that a rank holds during each action, by rank and position in its order.
        travel_seconds: Seconds in which each rank was idle because its next input was still being
            sent, by rank.
        peaks: Largest memory of each rank, by rank.
        reductions: Sums of gradients over replicas, ordered by rank.
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
        """Seconds from the start of the step to the end of the last action.

        Sums of gradients over replicas, which may end later, are not included.
        """
        return max((ends[-1] for ends in self.ends if ends), default=0.0)

    @property
    def step_seconds(self) -> float:
        """Seconds of the whole step, including the sums of gradients over replicas."""
        return max([self.pipeline_seconds, *(reduction.end for reduction in self.reductions)])

    @property
    def busy_seconds(self) -> tuple[float, ...]:
        """Seconds that each rank computes, by rank."""
        return tuple(sum(map(sub, *times)) for times in zip(self.ends, self.starts, strict=True))

    @property
    def idle_seconds(self) -> tuple[float, ...]:
        """Seconds that each rank is idle before the last action of all ranks ends, by rank."""
        return tuple(self.pipeline_seconds - busy for busy in self.busy_seconds)

    @property
    def bubble_fraction(self) -> float:
        """Fraction of `pipeline_seconds` in which ranks are idle, on average: from 0 to 1."""
        area = self.pipeline_seconds * len(self.ends)
        return sum(self.idle_seconds) / area if area else 0.0

    @property
    def exposed_seconds(self) -> tuple[float, ...]:
        """Seconds in which each rank only communicates, by rank.

        A rank only communicates while it waits for an input that is being sent, and while gradients
        are summed after its last action. Waiting for another rank's computation is not included.
        """
        exposed = list(self.travel_seconds)
        last = [ends[-1] if ends else 0.0 for ends in self.ends]
        for reduction in self.reductions:
            exposed[reduction.rank] += max(0.0, reduction.end - last[reduction.rank])
            last[reduction.rank] = max(last[reduction.rank], reduction.end)
        return tuple(exposed)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Largest number of bytes that each rank holds, by rank."""
        return tuple(peak.total_bytes for peak in self.peaks)

    def events(self) -> Iterator[SimulatedEvent]:
        """Yield every action with its times and memory: rank 0 first, in the order of execution."""
        for rank, order in enumerate(self.schedule.orders):
            times = zip(
                order, self.starts[rank], self.ends[rank], self.held_bytes[rank], strict=True
            )
            for action, start, end, held in times:
                yield SimulatedEvent(
                    rank=rank, action=action, start=start, end=end, held_bytes=held
                )
