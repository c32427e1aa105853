# SPDX-License-Identifier: Apache-2.0
"""Who meets where, and how each rank introduces itself there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Final

from smdist.dataparallel.rendezvous.frames import Frame, FrameError, Kind, expect

_MOST_NAMES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """One rank, as it introduces itself.

    Attributes:
        label: What messages call it.
        job: The name of its job, or "" where it has none.
    """

    rank: int
    size: int
    label: str
    job: str = ""

    def to_frame(self) -> Frame:
        """The frame that says so."""
        return Frame(Kind.JOIN, value=json.dumps(asdict(self)).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What one rank knows of it.

    Attributes:
        host: Where rank 0 is.
        port: Where it listens.
        patience_seconds: How long ranks wait for each other.
        secret: What every rank of the job knows; None where no file gives it.
        quiet_seconds: How long nobody is told that ranks wait; then every three times as long.
    """

    guest: Guest
    host: str
    port: int
    patience_seconds: float
    secret: bytes | None = field(default=None, repr=False)
    quiet_seconds: float = 10.0


def tellings(quiet_seconds: float) -> Iterator[float]:
    """When a rank says for whom it waits, in seconds since it came; without end."""
    return count(quiet_seconds, 3 * quiet_seconds)


def waiting(missing: Sequence[int], meeting: Meeting, seconds: float) -> str:
    """The line that says for whom."""
    names = ", ".join(f"rank {rank}" for rank in missing[:_MOST_NAMES])
    others = len(missing) - _MOST_NAMES
    names += f" and {others} others" if others > 0 else ""
    place = f"{meeting.host}:{meeting.port}"
    return f"smdist: waiting for {names} of {meeting.guest.size} at {place}, {seconds:g} s\n"


def guest_of(frame: Frame) -> Guest:
    """Who introduces itself by this frame.

    Raises:
        FrameError: Nobody does.
    """
    try:
        said = json.loads(expect(frame, Kind.JOIN).value)
        guest = Guest(**said)
        types = [type(each) for each in (guest.rank, guest.size, guest.label, guest.job)]
    except (ValueError, TypeError, RecursionError) as error:
        raise FrameError("a rank introduces itself in no way that is known here") from error
    if types != [int, int, str, str]:
        raise FrameError("a rank introduces itself with fields of other types")
    return guest


def mismatch(guest: Guest, first: Guest) -> str | None:
    """Why this guest is not of rank 0's job; None if it may be."""
    if guest.job != first.job:
        return f"it is of the job {guest.job!r}, and {first.label} of {first.job!r}"
    if guest.size != first.size:
        return f"it counts {guest.size} ranks, and {first.label} counts {first.size}"
    if not 0 <= guest.rank < first.size:
        return f"it is rank {guest.rank} of {first.size}"
    return None
