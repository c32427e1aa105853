# SPDX-License-Identifier: Apache-2.0
"""Errors that end a pipeline step, and their cause as data that is sent to all ranks."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from sagemaker_dist.errors import DistError

MOST_BYTES: Final = 3000  # limit of a fault that is sent to other ranks, as text and as JSON
_KEY: Final = "step"  # key in the JSON, by which a fault of a step is recognized
_ACTION: Final = re.compile(r"(\d+)([FBIW])(\d+)")
_PASSES: Final = {
    "F": "forward pass",
    "B": "backward pass",
    "I": "backward pass for inputs",
    "W": "backward pass for weights",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Place and cause of a step's failure, as data that is sent to all ranks.

    Attributes:
        rank: World rank of the process that failed.
        pipeline_rank: Number of this rank in its pipeline.
        action: Action that failed, such as "1F3" (stage 1, forward, microbatch 3); or a description
            of other work, such as "the sum of gradients".
        module: Name of the module that ran; a description if no module ran.
        why: Text of the error.
        gone: World rank of a process that ended without an error and so caused this failure; None
            if `rank` failed by itself.
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
        """Text that says which rank failed, and in what work."""
        rank = f"rank {self.rank} (pipeline rank {self.pipeline_rank})"
        work, parts = self.action, _ACTION.fullmatch(self.action)
        if parts is not None:
            stage, kind, microbatch = parts.groups()
            place = f"stage {stage}, {_PASSES[kind]}, microbatch {microbatch}"
            work = f"{self.action} of '{self.module}' ({place})"
        if self.gone is not None:
            return f"rank {self.gone} ended early, and {rank} lost the connection to it in {work}"
        return f"{rank} failed in {work}"

    @property
    def line(self) -> str:
        """Text with place and cause of the failure, shortened to MOST_BYTES bytes."""
        return _cut(str(self), MOST_BYTES)

    def encode(self) -> str:
        """Return the failure as JSON text of at most MOST_BYTES bytes.

        If the text would be longer, `why` is shortened.
        """
        limit = MOST_BYTES
        while True:
            fields = asdict(replace(self, why=_cut(self.why, limit)))
            text = json.dumps({_KEY: fields}, ensure_ascii=False)
            if len(text.encode()) <= MOST_BYTES or not limit:
                return text
            limit //= 2  # JSON needs several bytes for some characters

    @classmethod
    def decode(cls, details: str) -> Fault | None:
        """Return the failure in a JSON text that `encode` wrote; None for any other text.

        Args:
            details: Text that was sent with the end of a step, JSON or "".
        """
        if not details:
            return None
        found = json.loads(details)
        return cls(**found[_KEY]) if _KEY in found else None


class StepError(DistError):
    """Error that ends a step on all ranks, because the step failed on one rank.

    Args:
        fault: Place and cause of the failure.
        hint: Advice for the user. The default names the rank whose log to read.

    Attributes:
        kind: "step" if a rank raised an error; "lost" if a process ended without one.
        fault: The argument of the same name.
        rank: World rank that failed, or that lost the connection to `gone`.
        pipeline_rank: Number of this rank in its pipeline.
        action: Action that failed, such as "1F3" (stage 1, forward, microbatch 3); or a description
            of other work.
        module: Name of the module that ran, or a description of other code.
        gone: World rank of the process that ended without an error; None if `kind` is "step".
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
        """Return the parts of the error's text and the fields of the fault, as a dict for JSON."""
        return {**super().as_dict(), **asdict(self.fault)}

    def __str__(self) -> str:
        end = "" if self.why.endswith((".", "?", "!")) else "."
        return f"{self.what}: {self.why}{end} {self.hint}."


class StepInterruptedError(StepError, KeyboardInterrupt):
    """Error for a step that a KeyboardInterrupt, such as Ctrl-C, has ended on this rank."""


class LostError(Exception):
    """Failure to send or receive a message, because another rank has ended or has aborted the step.

    Attributes:
        peer: Pipeline rank at the other end of the message; None for a collective operation.
        cause: Error that the communication backend raised.
    """

    def __init__(self, peer: int | None, cause: BaseException) -> None:
        super().__init__(peer, str(cause))
        self.peer, self.cause = peer, cause


def _cut(text: str, most_bytes: int) -> str:
    """Return the longest beginning of a text that has at most `most_bytes` bytes in UTF-8."""
    return text.encode()[:most_bytes].decode(errors="ignore")


def _hint(fault: Fault) -> str:
    """Return the advice for the user after a failure: which rank's log to read."""
    if fault.gone is None:
        return f"See the traceback in the log of rank {fault.rank}"
    return (
        f"See the end of the log of rank {fault.gone}: the process exited, or it was killed, for"
        " example because its host had no memory left"
    )


def error_text(error: BaseException) -> str:
    """Return the type and the message of an exception: "ValueError: no such label"."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
