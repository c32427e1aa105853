# SPDX-License-Identifier: Apache-2.0
"""Events of a recorded run, as data. A rank's receive, compute and send may overlap:

rank 1   receive |--- waits ---|                     for a value of rank 0
         compute               |------ F0 ------|
         send                                   |-|  to rank 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from smdist.modelparallel.core.schedule.actions import Do

ACTIONS: Final = frozenset(do.value for do in Do)  # actions of a schedule: F, B, I, W
SEND: Final = "send"
RECEIVE: Final = "recv"
FORWARD: Final = Do.F.value
REDUCE: Final = "reduce"  # sum of gradients over replicas, after the last backward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Action, message or other work of one rank, with its times.

    Attributes:
        kind: "F", "B", "I" or "W" for an action (forward, backward, input gradients, weight
            gradients); "send" if the rank sends an action's result; "recv" if the rank waits for
            an action's input; or the name of other work.
        stage: Stage of the event; -1 if it belongs to no stage.
        microbatch: Microbatch of the event; -1 if it belongs to no microbatch.
        step: Number of the step; the first recorded step is 0.
        start: Start in seconds, on a clock that all ranks share.
        end: End in seconds, on the same clock.
        detail: For messages, the kind of action that sent or needs the value: "F", "B" or "I". Any
            text for other events.
    """

    kind: str
    stage: int
    microbatch: int
    step: int
    start: float
    end: float
    detail: str = ""

    @property
    def is_message(self) -> bool:
        """True if the event is a send or a receive."""
        return self.kind in (SEND, RECEIVE)

    @property
    def is_forward(self) -> bool:
        """True if the event is a forward pass, or a message with activations."""
        return FORWARD in (self.kind, self.detail)

    @property
    def seconds(self) -> float:
        """Duration of the event in seconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Recorded events of one rank, with its place in the job.

    Attributes:
        rank: Rank in the world.
        pipeline_rank: Rank within the pipeline, from 0.
        replica: Number of the pipeline, which trains one replica of the model; from 0.
        host: Name of the rank's host.
        events: Events in the order in which they were recorded.
        clock_error_seconds: Largest error of the times, relative to the clock of rank 0.
        num_lost: Number of earliest events that were dropped because the buffer was full.
        device: Kind of device that computes, such as "cpu" or "cuda".
        peak_bytes: Largest number of bytes of tensors on the device since the process started; None
            for "cpu", whose tensors nobody counts.
    """

    rank: int
    pipeline_rank: int
    replica: int
    host: str
    events: tuple[Event, ...]
    clock_error_seconds: float = 0.0
    num_lost: int = 0
    device: str = "cpu"
    peak_bytes: int | None = None
