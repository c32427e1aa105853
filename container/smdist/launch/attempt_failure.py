# SPDX-License-Identifier: Apache-2.0
"""Failure of one attempt of a job, and the decision whether its ranks are started again.

An attempt is one run of all ranks. The job is not restarted

    after max_restarts restarts                                         kind "limit"
    if the last two attempts failed alike, and both without progress    kind "loop"

Two attempts failed alike if host, rank, kind, exception, exit code and source line of their
failures are the same. An attempt made progress if it changed a file in the checkpoint directory, if
it ran for 60 s after its ranks had connected, or for 600 s in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from smdist.launch.failure_file import describe
from smdist.launch.guard_protocol import Report, exit_status

CONNECTED_SECONDS: Final = 60.0
ATTEMPT_SECONDS: Final = 600.0
HOST: Final = "host"  # kind of a failure: the launcher of a host was lost
STARTER: Final = "starter"  # torchrun or the task starter failed although no rank did
MAX_TEXT: Final = 400  # characters; a message between launchers has at most 1 MiB
_MAX_FIELD: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailure:
    """Failure that ended an attempt.

    Attributes:
        attempt: Number of the attempt, from 0.
        host: Name of the host where ranks failed.
        rank: The rank that failed; None if the whole host did.
        kind: Kind of the rank's error, such as "raised" or "lost"; "exit" or "signal" if the rank
            left no error; "starter" if the ranks could not be started; "host" if the host's
            launcher was lost.
        exception: Name of the exception's type, or "".
        exit_code: Exit code as a shell has it; None if the host was lost.
        frame: Source line of the error, such as "train.py:12 in main", or "".
        text: Sentence on how the rank ended.
        at_seconds: Time of the failure, in seconds since 1970.
        distance: Number that orders failures; the smallest is the likeliest cause
            (`guard_protocol.Report.distance`).
        progress: True if the attempt made progress before it failed.
    """

    attempt: int
    host: str
    rank: int | None = None
    kind: str
    exception: str = ""
    exit_code: int | None = None
    frame: str = ""
    text: str
    at_seconds: float
    distance: int = 0
    progress: bool = False

    def is_like(self, other: AttemptFailure) -> bool:
        """Return True if both failures have the same host, rank, kind, exception, code and line."""
        names = ("host", "rank", "kind", "exception", "exit_code", "frame")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def to_json(self) -> dict[str, Any]:
        """Return the fields for restarts.json, by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> AttemptFailure:
        """Return the failure whose fields `to_json` returned; unknown fields are ignored."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in found.items() if name in names})


def failure_of(report: Report, label: str, attempt: int) -> AttemptFailure:
    """Return the failure of an attempt from the report of a rank of host `label`."""
    fault = report.fault
    how = "signal" if exit_status(report.status) > 128 else "exit"
    return AttemptFailure(
        attempt=attempt,
        host=label,
        rank=report.rank,
        kind=fault.kind[:_MAX_FIELD] if fault else how,
        exception=fault.exception[:_MAX_FIELD] if fault else "",
        exit_code=report.exit_code,
        frame=report.frame[:_MAX_FIELD],
        text=describe(report, label)[:MAX_TEXT],
        at_seconds=report.at_seconds,
        distance=report.distance,
    )


def culprit_of(failures: Iterable[AttemptFailure]) -> AttemptFailure | None:
    """Return the failure that caused the others; None if there is none.

    A lost host comes first, then a rank that failed by itself; among equals, the earliest.
    """
    return min(
        failures, key=lambda each: (each.kind != HOST, each.distance, each.at_seconds), default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason why a failed job is not restarted.

    Attributes:
        kind: "limit", "loop" or "lost".
        text: The reason as a part of a sentence.
    """

    kind: str
    text: str


def refusal(history: Sequence[AttemptFailure], max_restarts: int) -> Refusal | None:
    """Return why the job is not restarted after the last failure of `history`; None if it is.

    A host that was lost is never a loop.
    """
    if history[-1].attempt >= max_restarts:
        times = "once" if max_restarts == 1 else f"{max_restarts} times"
        return Refusal(kind="limit", text=f"the ranks were restarted {times}, as max_restarts says")
    if len(history) >= 2:
        last, before = history[-1], history[-2]
        if last.is_like(before) and last.kind != HOST and not (last.progress or before.progress):
            return Refusal(
                kind="loop",
                text="two attempts failed in the same way and made no progress, so another"
                " restart would not help",
            )
    return None
