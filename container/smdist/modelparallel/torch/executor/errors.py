# SPDX-License-Identifier: Apache-2.0
"""Why a step ended, in words that travel to all ranks and can be read back from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sagemaker_dist.errors import DistError

MOST_BYTES: Final = 3000  # of a reason on its way to other ranks
_FOUND: Final = re.compile(
    r"(?:rank (\d+) is gone: )?"
    r"rank (\d+) \(pipeline rank (\d+)\) (?:failed|missed it) in (.+?) of '([^'\n]*)': (.*)",
    re.DOTALL,
)
_GONE: Final = re.compile(  # what our engine says of a process that has ended without a word
    r"rank (\d+)(?: on \S+)? (?:closed its connection|refused the connection)"
)


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
        return str(self).encode()[:MOST_BYTES].decode(errors="ignore")

    @classmethod
    def read(cls, text: str) -> Fault | None:
        """The fault that a text tells of, if it does."""
        found = _FOUND.search(text)
        if found is None:
            return None
        gone, rank, pipeline_rank, action, module, why = found.groups()
        return cls(
            rank=int(rank),
            pipeline_rank=int(pipeline_rank),
            action=action,
            module=module,
            why=why,
            gone=None if gone is None else int(gone),
        )


class StepError(DistError):
    """A step ended on all ranks because it failed on one.

    Attributes:
        rank: Which, among all.
        pipeline_rank: Which, in its pipeline.
        action: What it did there: "1F3" is stage 1, forward, microbatch 3.
        module: What ran.
        gone: The rank that ended without a word, if that is why; `rank` is one that missed it.
    """

    def __init__(self, fault: Fault, mend: str = "") -> None:
        mend = mend or _mend(fault)
        super().__init__(fault.where, fault.why, mend)
        self.args = (fault, mend)  # pickles
        self.fault = fault
        self.rank, self.pipeline_rank = fault.rank, fault.pipeline_rank
        self.action, self.module = fault.action, fault.module
        self.gone = fault.gone

    def __str__(self) -> str:
        end = "" if self.why.endswith((".", "?", "!")) else "."
        return f"{self.what}: {self.why}{end} {self.mend}."


class StepInterruptedError(StepError, KeyboardInterrupt):
    """A step that somebody interrupted: with Ctrl-C, for one."""


class LostError(Exception):
    """A message failed: another rank is gone, or it ended the step. Whose it was, if one's."""

    def __init__(self, peer: int | None, cause: BaseException) -> None:
        super().__init__(peer, str(cause))
        self.peer, self.cause = peer, cause


def gone_in(error: BaseException) -> int | None:
    """The rank whose process has ended, as far as an error of our engine says."""
    found = _GONE.search(str(error))
    return None if found is None else int(found[1])


def _mend(fault: Fault) -> str:
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
