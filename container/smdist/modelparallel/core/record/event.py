# SPDX-License-Identifier: Apache-2.0
"""What is recorded of a run, as data.

rank 1   receive |--- waits ---|                    for what rank 0 sends
         compute               |------ F0 ------|
         send                                 |-|   to rank 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from smdist.modelparallel.core.schedule.actions import Do

ACTIONS: Final = frozenset(do.value for do in Do)  # what a schedule orders: F, B, I, W
SEND: Final = "send"
RECEIVE: Final = "recv"
FORWARD: Final = Do.F.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that took time on one rank.

    Attributes:
        kind: One of `ACTIONS`; `SEND`, handing over what an action has made; `RECEIVE`, waiting
            for what an action reads; or the name of anything else.
        stage: Whose; -1 where it is of none.
        microbatch: Likewise.
        step: Counted from the first that was recorded.
        start: Seconds, on a clock that all ranks share.
        end: Likewise.
        detail: Of what is sent or received, the action: "F", "B", "I". Of others, anything.
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
        """Whether it is of something sent or received."""
        return self.kind in (SEND, RECEIVE)

    @property
    def is_forward(self) -> bool:
        """Whether it is of a forward pass, a message of which carries activations."""
        return FORWARD in (self.kind, self.detail)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What one rank did.

    Attributes:
        rank: In the world.
        pipeline_rank: In its pipeline.
        replica: Which pipeline that is.
        host: Its name.
        events: In the order in which they were recorded.
        clock_error_seconds: How far its times may be off those of the first rank, at most.
        num_lost: Events that there was no room for, the earliest.
    """

    rank: int
    pipeline_rank: int
    replica: int
    host: str
    events: tuple[Event, ...]
    clock_error_seconds: float = 0.0
    num_lost: int = 0
