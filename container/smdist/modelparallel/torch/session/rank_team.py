# SPDX-License-Identifier: Apache-2.0
"""Team of ranks that do the same work. If one rank fails, all ranks raise an error.

Otherwise the other ranks would continue alone, and wait forever in the next collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import torch.distributed as dist

from sagemaker_dist.errors import DistError, OptionError
from smdist.modelparallel.core.session_agreement import DisagreementError
from smdist.modelparallel.torch.session.object_collectives import (
    all_gather_object,
    broadcast_object,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankTeam:
    """Ranks that work together: all ranks, the ranks of a process group, or this process alone.

    Attributes:
        rank: Number of this rank in the team.
        size: Number of ranks in the team.
        group: Process group of the team; None for torch.distributed's default group, and for a
            process alone.
    """

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = field(default=None, repr=False)

    @classmethod
    def here(cls) -> Self:
        """Return a team of all ranks; without torch.distributed, a team of this process alone."""
        is_alone = not (dist.is_available() and dist.is_initialized())
        return cls() if is_alone else cls(dist.get_rank(), dist.get_world_size())

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> Self:
        """Return the team of the ranks of a process group, which must include this rank."""
        return cls(dist.get_rank(group), dist.get_world_size(group), group)

    @property
    def is_first(self) -> bool:
        """True if this is rank 0 of the team."""
        return self.rank == 0

    def in_world(self, rank: int) -> int:
        """Convert a rank's number in the team to its number in the world."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks of the team, in the order of ranks; all must call this."""
        if self.size == 1:
            return [value]
        if self.group is not None:
            return all_gather_object(value, self.group)
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def share(self, value: T | None) -> T:
        """Return the value of the team's rank 0 on every rank; all its ranks must call this.

        Args:
            value: Value to share; ignored on all ranks but rank 0 of the team.
        """
        if self.size == 1:
            return value  # type: ignore[return-value]
        if self.group is not None:
            return broadcast_object(value, 0, self.group)  # type: ignore[return-value]
        box: list[Any] = [value if self.is_first else None]
        dist.broadcast_object_list(box, group_src=0)
        found: T = box[0]
        return found

    def failures(
        self, error: BaseException | None, describe: Callable[[BaseException], T]
    ) -> dict[int, T]:
        """Exchange the errors of all ranks of the team; all ranks must call this.

        Args:
            error: Error of this rank; None if the work of this rank succeeded.
            describe: Function that converts an error to data that can be sent, such as its text.

        Returns:
            Result of `describe` for each failed rank, by world rank; the same on all ranks.
        """
        found = self.gather(None if error is None else describe(error))
        return {self.in_world(at): each for at, each in enumerate(found) if each is not None}

    def run_on_first(
        self,
        run: Callable[[], T],
        portable: Callable[[BaseException], OptionError],
        *,
        raises_own: bool = False,
    ) -> T:
        """Run a function on rank 0 of the team, and return its result on all ranks.

        All ranks of the team must call this.

        Args:
            run: Function without arguments; it must not communicate with other ranks.
            portable: Function that converts an error of `run` to an error that can be pickled.
            raises_own: True if rank 0 raises the original error of `run`. False if rank 0 raises
                the converted error, as other ranks do. KeyboardInterrupt and SystemExit are not
                converted.

        Raises:
            OptionError: The function failed; `portable` has converted its error.
        """
        value, error = caught(run) if self.is_first else (None, None)
        result, failure = self.share((value, None if error is None else portable(error)))
        if error is not None and (raises_own or isinstance(error, (KeyboardInterrupt, SystemExit))):
            raise error
        if failure is not None:
            raise failure from (None if failure is error else error)
        return result  # type: ignore[return-value]


def caught(run: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Run a function; return its result and None, or None and the error that it raised."""
    try:
        return run(), None
    except BaseException as error:
        return None, error


@contextmanager
def raise_together(group: dist.ProcessGroup, doing: str) -> Iterator[None]:
    """Run the block on each rank of a group; if it fails on one rank, raise an error on all ranks.

    All ranks of the group must run this block, and the block must not communicate with other ranks.

    Args:
        group: Process group of the ranks.
        doing: Work of the block, for the error's text, such as "the capture of the model".

    Raises:
        BaseException: The block raised this error on this rank.
        DisagreementError: The block failed on another rank only.
    """
    fault: BaseException | None = None
    try:
        yield
    except BaseException as error:  # any error, since other ranks wait for this one
        fault = error
    failed = RankTeam.of(group).failures(fault, error_text)
    if fault is not None:
        raise fault
    raise_first(failed, doing)


def raise_first(failed: Mapping[int, str], doing: str) -> None:
    """Raise an error for one failed rank, the first in `failed`; do nothing if no rank failed.

    Args:
        failed: Text of each failed rank's error, by world rank.
        doing: Work that failed, for the error's text, such as "the capture of the model".

    Raises:
        DisagreementError: A rank failed.
    """
    for rank, text in failed.items():
        raise rank_failure(rank, doing, text)


def rank_failure(rank: int, doing: str, text: str) -> DisagreementError:
    """Return the error that the other ranks raise after one rank has failed.

    Args:
        rank: World rank that failed.
        doing: Work that failed, for the error's text, such as "the capture of the model".
        text: Text of the error on the rank that failed.
    """
    return DisagreementError(
        f"rank {rank} failed in {doing}",
        text.rstrip("."),
        "See the error of that rank",
        kind="failed",
        rank=rank,
    )


def error_text(error: BaseException) -> str:
    """Return the message of an error, to send to other ranks.

    If the error is not an error class of this project, the name of its type comes first.
    """
    text = str(error).strip()
    if isinstance(error, DistError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
