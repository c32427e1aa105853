# SPDX-License-Identifier: Apache-2.0
"""Why a step ended: data that travels to all ranks beside its sentence."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from sagemaker_dist.errors import DistError

MOST_BYTES: Final = 3000  # of a reason on its way to other ranks, as text and as JSON
_FORM: Final = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Where and why a step ended.

    Attributes:
        rank: Among all ranks.
        pipeline_rank: In its pipeline.
        action: As in the schedule: "1F3"; or what else it did.
        module: The unit that ran, or whose forward function it was; what else, where it was none.
        why: One sentence, or a few.
        gone: The rank that ended without a word, among all, if that is why.
    """

    rank: int
    pipeline_rank: int
    action: str
    module: str
    why: str
    gone: int | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"

    @property
    def where(self) -> str:
        """Rank, action and module; before them the rank that is gone."""
        who = f"rank {self.rank} (pipeline rank {self.pipeline_rank})"
        did = f"{self.action} of '{self.module}'"
        if self.gone is not None:
            return f"rank {self.gone} is gone: {who} missed it in {did}"
        return f"{who} failed in {did}"

    @property
    def line(self) -> str:
        """All of it, not too long to travel."""
        return _cut(str(self), MOST_BYTES)

    def encode(self) -> str:
        """Return the fields as JSON, not too long to travel."""
        room = MOST_BYTES
        while True:
            fields = asdict(replace(self, why=_cut(self.why, room)))
            text = json.dumps({_FORM: fields}, ensure_ascii=False)
            if len(text.encode()) <= MOST_BYTES or not room:
                return text
            room //= 2  # JSON writes some letters longer

    @classmethod
    def decode(cls, details: str) -> Fault | None:
        """Read what `encode` wrote; None for what others put there."""
        if not details:
            return None
        found = json.loads(details)
        return cls(**found[_FORM]) if _FORM in found else None


class StepError(DistError):
    """A step ended on all ranks because it failed on one; `kind` is "step", or "lost".

    Attributes:
        rank: Which, among all.
        pipeline_rank: Which, in its pipeline.
        action: What it did there: "1F3" is stage 1, forward, microbatch 3.
        module: What ran.
        gone: The rank that ended without a word, if that is why; `rank` is one that missed it.
    """

    def __init__(self, fault: Fault, hint: str = "") -> None:
        hint = hint or _hint(fault)
        super().__init__(
            fault.where, fault.why, hint, kind="step" if fault.gone is None else "lost"
        )
        self.args = (fault, hint)  # pickles
        self.fault = fault
        self.rank, self.pipeline_rank = fault.rank, fault.pipeline_rank
        self.action, self.module = fault.action, fault.module
        self.gone = fault.gone

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON has them, with those of the fault."""
        return {**super().as_dict(), **asdict(self.fault)}

    def __str__(self) -> str:
        end = "" if self.why.endswith((".", "?", "!")) else "."
        return f"{self.what}: {self.why}{end} {self.hint}."


class StepInterruptedError(StepError, KeyboardInterrupt):
    """A step that somebody interrupted: with Ctrl-C, for one."""


class LostError(Exception):
    """A message failed: another rank is gone, or it ended the step. Whose it was, if one's."""

    def __init__(self, peer: int | None, cause: BaseException) -> None:
        super().__init__(peer, str(cause))
        self.peer, self.cause = peer, cause


def _cut(text: str, most_bytes: int) -> str:
    return text.encode()[:most_bytes].decode(errors="ignore")


def _hint(fault: Fault) -> str:
    if fault.gone is None:
        return f"The log of rank {fault.rank} has its traceback"
    return (
        f"Look at the end of the log of rank {fault.gone}: it was killed, for memory perhaps, or"
        " it ended by itself"
    )


def said(error: BaseException) -> str:
    """An exception in one line and a half."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
