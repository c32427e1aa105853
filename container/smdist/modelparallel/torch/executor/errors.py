# SPDX-License-Identifier: Apache-2.0
"""Why a step ended, in words that travel to all ranks and can be read back from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sagemaker_dist.errors import DistError

MOST_BYTES: Final = 3000  # of a reason on its way to other ranks
_FOUND: Final = re.compile(
    r"rank (\d+) \(pipeline rank (\d+)\) failed in (.+?) of '([^'\n]*)': (.*)", re.DOTALL
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
    """

    rank: int
    pipeline_rank: int
    action: str
    module: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"

    @property
    def where(self) -> str:
        """Rank, action and module."""
        who = f"rank {self.rank} (pipeline rank {self.pipeline_rank})"
        return f"{who} failed in {self.action} of '{self.module}'"

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
        rank, pipeline_rank, action, module, why = found.groups()
        return cls(
            rank=int(rank),
            pipeline_rank=int(pipeline_rank),
            action=action,
            module=module,
            why=why,
        )


class StepError(DistError):
    """A step ended on all ranks because it failed on one.

    Attributes:
        rank: Which, among all.
        pipeline_rank: Which, in its pipeline.
        action: What it did there: "1F3" is stage 1, forward, microbatch 3.
        module: What ran.
    """

    def __init__(self, fault: Fault, mend: str = "") -> None:
        mend = mend or f"The log of rank {fault.rank} has its traceback"
        super().__init__(fault.where, fault.why, mend)
        self.args = (fault, mend)  # pickles
        self.fault = fault
        self.rank, self.pipeline_rank = fault.rank, fault.pipeline_rank
        self.action, self.module = fault.action, fault.module

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


def said(error: BaseException) -> str:
    """An exception in one line and a half."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
