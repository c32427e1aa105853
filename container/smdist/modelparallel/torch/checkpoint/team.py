# SPDX-License-Identifier: Apache-2.0
"""Run the same work on all ranks; if it fails on one rank, it fails on all of them.

A rank that continued alone would wait forever for the others in the next collective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch.distributed as dist

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError, in_words

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Team:
    """The ranks of the world, or of a group, or this process alone.

    Attributes:
        rank: This rank's number in the team.
        size: Number of ranks.
        group: The process group; None for the world.
    """

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = field(default=None, repr=False)

    @classmethod
    def here(cls) -> Team:
        """Return the world of torch.distributed, or this process alone if that was not started."""
        is_alone = not (dist.is_available() and dist.is_initialized())
        return cls() if is_alone else cls(dist.get_rank(), dist.get_world_size())

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> Team:
        """Return the ranks of a group that includes this rank."""
        return cls(dist.get_rank(group), dist.get_world_size(group), group)

    @property
    def is_first(self) -> bool:
        """Tell whether this is the team's rank 0."""
        return self.rank == 0

    def in_world(self, rank: int) -> int:
        """Return the rank in the world of a rank of the team."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def gather(self, value: _T) -> list[_T]:
        """Return the values of all ranks, in the order of ranks; collective."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def share(self, value: _T | None) -> _T:
        """Return the first rank's value; collective."""
        if self.size == 1:
            return value  # type: ignore[return-value]
        box: list[Any] = [value if self.is_first else None]
        dist.broadcast_object_list(box, group=self.group, group_src=0)
        found: _T = box[0]
        return found

    def do(self, what: str, run: Callable[[], _T], *, hint: str) -> _T:
        """Run a function on every rank; collective.

        Args:
            what: First part of the error: "checkpoint 'a' cannot be written".
            run: The function; it must not communicate with other ranks.
            hint: Third part of the error.

        Raises:
            CheckpointError: The function failed on some rank; all ranks raise the same error.
            OptionError: All ranks raised this same error.
        """
        value, error = _caught(run)
        told = self.gather(None if error is None else in_words(error))
        failed = {self.in_world(at): text for at, text in enumerate(told) if text is not None}
        if not failed:
            return value  # type: ignore[return-value]
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
        if isinstance(error, OptionError) and len(failed) == self.size == told.count(told[0]):
            raise error
        raise failure(what, failed, hint) from error

    def do_first(self, what: str, run: Callable[[], _T], *, hint: str) -> _T:
        """Run a function on the first rank and return its result on all ranks; collective.

        Raises:
            OptionError: The function failed; all ranks raise the same error, which is the first
                rank's own if that is an OptionError.
        """
        value, error = _caught(run) if self.is_first else (None, None)
        told = self.share((value, self._for_all(error, what, hint)))
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
        if told[1] is not None:
            raise told[1] from error
        found: _T = told[0]  # type: ignore[assignment]
        return found

    def _for_all(self, error: BaseException | None, what: str, hint: str) -> OptionError | None:
        if error is None or isinstance(error, OptionError):
            return error
        return failure(what, {self.in_world(0): in_words(error)}, hint)


def failure(what: str, failed: dict[int, str], hint: str) -> CheckpointError:
    """Return one error for failures of several ranks; ranks with the same cause are grouped."""
    ranks: dict[str, list[int]] = {}
    for rank, text in failed.items():
        ranks.setdefault(text, []).append(rank)
    whys = [f"{_names(of)}: {text}" for text, of in ranks.items()]
    return CheckpointError(what, "; ".join(whys), hint)


def _names(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + ", ..." * (len(ranks) > 8)
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _caught(run: Callable[[], _T]) -> tuple[_T | None, BaseException | None]:
    try:
        return run(), None
    except BaseException as error:
        return None, error
