# SPDX-License-Identifier: Apache-2.0
"""Descriptions of a rendezvous and its ranks, and the checks of a rank that joins."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Final

from smdist.dataparallel.rendezvous.store_protocol import Frame, FrameError, FrameKind, expect

_MOST_NAMES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """Description that a rank sends when it joins.

    Attributes:
        label: The rank's name in messages.
        job: The name of its job, or "" if it has none.
    """

    rank: int
    size: int
    label: str
    job: str = ""

    def to_frame(self) -> Frame:
        """Return the JOIN frame that carries this description."""
        return Frame(FrameKind.JOIN, value=json.dumps(asdict(self)).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Configuration of the rendezvous on one rank.

    Attributes:
        host: The host of rank 0.
        port: The port at which rank 0 listens.
        patience_seconds: How long ranks wait for each other.
        secret: The secret that all ranks of the job share, or None without a secret file.
        quiet_seconds: Time before the first message about missing ranks; further messages
            follow at three times this interval.
    """

    participant: Participant
    host: str
    port: int
    patience_seconds: float
    secret: bytes | None = field(default=None, repr=False)
    quiet_seconds: float = 10.0


def tellings(quiet_seconds: float) -> Iterator[float]:
    """Yield the times of messages about missing ranks, in seconds since the start, without end."""
    return count(quiet_seconds, 3 * quiet_seconds)


def waiting(missing: Sequence[int], meeting: Meeting, seconds: float) -> str:
    """Return the message that names the missing ranks."""
    names = ", ".join(f"rank {rank}" for rank in missing[:_MOST_NAMES])
    others = len(missing) - _MOST_NAMES
    names += f" and {others} others" if others > 0 else ""
    place = f"{meeting.host}:{meeting.port}"
    return f"smdist: waiting for {names} of {meeting.participant.size} at {place}, {seconds:g} s\n"


def participant_of(frame: Frame) -> Participant:
    """Return the description of a rank from its JOIN frame.

    Raises:
        FrameError: The frame does not describe a rank.
    """
    try:
        said = json.loads(expect(frame, FrameKind.JOIN).value)
        participant = Participant(**said)
        types = [
            type(each)
            for each in (participant.rank, participant.size, participant.label, participant.job)
        ]
    except (ValueError, TypeError, RecursionError) as error:
        raise FrameError("a rank introduces itself in no way that is known here") from error
    if types != [int, int, str, str]:
        raise FrameError("a rank introduces itself with fields of other types")
    return participant


def mismatch(participant: Participant, first: Participant) -> str | None:
    """Return why a rank does not belong to rank 0's job, or None if it does."""
    if participant.job != first.job:
        return f"it is of the job {participant.job!r}, and {first.label} of {first.job!r}"
    if participant.size != first.size:
        return f"it counts {participant.size} ranks, and {first.label} counts {first.size}"
    if not 0 <= participant.rank < first.size:
        return f"it is rank {participant.rank} of {first.size}"
    return None
