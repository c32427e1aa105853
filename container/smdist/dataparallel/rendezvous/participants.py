# SPDX-License-Identifier: Apache-2.0
"""Data of a rendezvous: its configuration, and the description that each rank sends to rank 0.

Rank 0 checks the description of each rank that joins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Final

from smdist.dataparallel.rendezvous.store_protocol import Frame, FrameError, FrameKind, require_kind

_MAX_NAMES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """Description of a rank, which it sends to rank 0's store server when it joins.

    Attributes:
        rank: The rank's number.
        size: Number of ranks in the job.
        label: The rank's name in messages.
        job: SageMaker's name of the job, or "" if unknown.
        attempt: Number of times that the launcher has started the ranks of the job again.
    """

    rank: int
    size: int
    label: str
    job: str = ""
    attempt: int = 0

    def to_frame(self) -> Frame:
        """Return the JOIN frame that contains this description as JSON."""
        return Frame(FrameKind.JOIN, value=json.dumps(asdict(self)).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousConfig:
    """Configuration of the rendezvous on one rank.

    Attributes:
        participant: Description of this rank.
        host: Address of rank 0's host.
        port: Port at which rank 0's store server listens.
        timeout_seconds: Seconds that ranks wait for each other.
        secret: The secret that all ranks of the job share, or None if they have none.
        listening_address: The one IP address at which rank 0's store server listens; "" for all
            addresses of its host.
        report_seconds: Seconds before the first message about missing ranks. Each further message
            follows 3 * report_seconds after the one before.
    """

    participant: Participant
    host: str
    port: int
    timeout_seconds: float
    secret: bytes | None = field(default=None, repr=False)
    listening_address: str = ""
    report_seconds: float = 10.0


def report_times(report_seconds: float) -> Iterator[float]:
    """Yield endlessly the times of messages about missing ranks, in seconds since the start.

    The first time is `report_seconds`. Each further time is 3 * report_seconds after the one
    before: with 10 seconds, the times are 10, 40, 70 and so on.
    """
    return count(report_seconds, 3 * report_seconds)


def waiting_message(missing: Sequence[int], rendezvous: RendezvousConfig, seconds: float) -> str:
    """Return the log line that names the missing ranks, after `seconds` of waiting.

    `missing` are their numbers. The line also has rank 0's address, from `rendezvous`.
    """
    names = ", ".join(f"rank {rank}" for rank in missing[:_MAX_NAMES])
    others = len(missing) - _MAX_NAMES
    names += f" and {others} others" if others > 0 else ""
    place = f"{rendezvous.host}:{rendezvous.port}"
    size = rendezvous.participant.size
    return f"smdist: has waited {seconds:g} s at {place} for {names} of {size} ranks\n"


def parse_participant(frame: Frame) -> Participant:
    """Return the description of a rank from its JOIN frame.

    Raises:
        FrameError: The frame does not describe a rank.
    """
    try:
        fields = json.loads(require_kind(frame, FrameKind.JOIN).value)
        participant = Participant(**fields)
        types = [
            type(each)
            for each in (
                participant.rank,
                participant.size,
                participant.label,
                participant.job,
                participant.attempt,
            )
        ]
    except (ValueError, TypeError, RecursionError) as error:
        raise FrameError(
            "the joining process does not describe itself as a rank of this release does."
            " Perhaps it runs another release"
        ) from error
    if types != [int, int, str, str, int]:
        raise FrameError(
            "the joining process sent its rank, size, name, job or attempt with a wrong type."
            " Perhaps it runs another release"
        )
    return participant


def mismatch(participant: Participant, first: Participant) -> str | None:
    """Return the reason why a rank does not belong to rank 0's job, or None if it does.

    `first` describes rank 0.
    """
    if participant.job != first.job:
        return f"its job is {participant.job!r}, and the job of {first.label} is {first.job!r}"
    if participant.attempt != first.attempt:
        return (
            f"it belongs to attempt {participant.attempt}, and {first.label} to attempt"
            f" {first.attempt}"
        )
    if participant.size != first.size:
        return f"its WORLD_SIZE is {participant.size}, and that of {first.label} is {first.size}"
    if not 0 <= participant.rank < first.size:
        return f"its RANK is {participant.rank}, and WORLD_SIZE is {first.size}"
    return None
