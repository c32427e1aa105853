# SPDX-License-Identifier: Apache-2.0
"""All ranks do the same thing, and what fails on one of them fails on all.

A rank that went on alone would wait for the others in the next collective, for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch.distributed as dist

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.checkpoint.errors import CheckpointError, in_words

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Team:
    """The ranks of the world, or of a group, or this process by itself.

    Attributes:
        rank: This one, as the team counts.
        size: How many there are.
        group: Theirs; None for the world.
    """

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = field(default=None, repr=False)

    @classmethod
    def here(cls) -> Team:
        """Those of torch.distributed; one where it was not started."""
        is_alone = not (dist.is_available() and dist.is_initialized())
        return cls() if is_alone else cls(dist.get_rank(), dist.get_world_size())

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> Team:
        """Those of a group that this rank is in."""
        return cls(dist.get_rank(group), dist.get_world_size(group), group)

    @property
    def is_first(self) -> bool:
        """Whether this is the team's rank 0."""
        return self.rank == 0

    def in_world(self, rank: int) -> int:
        """A rank of the team, as the world counts."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def gather(self, value: _T) -> list[_T]:
        """What every rank passed, by rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def share(self, value: _T | None) -> _T:
        """What the first rank passed."""
        if self.size == 1:
            return value  # type: ignore[return-value]
        box: list[Any] = [value if self.is_first else None]
        dist.broadcast_object_list(box, group=self.group, group_src=0)
        found: _T = box[0]
        return found

    def do(self, what: str, run: Callable[[], _T], *, mend: str) -> _T:
        """Run something on every rank.

        Args:
            what: For the error: "checkpoint 'a' cannot be written".
            run: Must not talk to other ranks.
            mend: For the error.

        Raises:
            CheckpointError: It failed on some rank: the same error on all.
            OptionError: What all ranks raised alike.
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
        raise failure(what, failed, mend) from error

    def do_first(self, what: str, run: Callable[[], _T], *, mend: str) -> _T:
        """Run something on the first rank and give its result to all.

        Raises:
            OptionError: It failed: the same error on all ranks, the first one's own if it is one.
        """
        value, error = _caught(run) if self.is_first else (None, None)
        told = self.share((value, self._for_all(error, what, mend)))
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
        if told[1] is not None:
            raise told[1] from error
        found: _T = told[0]  # type: ignore[assignment]
        return found

    def _for_all(self, error: BaseException | None, what: str, mend: str) -> OptionError | None:
        if error is None or isinstance(error, OptionError):
            return error
        return failure(what, {self.in_world(0): in_words(error)}, mend)


def failure(what: str, failed: dict[int, str], mend: str) -> CheckpointError:
    """One error for what went wrong on some ranks; ranks of one cause are named together."""
    ranks: dict[str, list[int]] = {}
    for rank, text in failed.items():
        ranks.setdefault(text, []).append(rank)
    whys = [f"{_names(of)}: {text}" for text, of in ranks.items()]
    return CheckpointError(what, "; ".join(whys), mend)


def _names(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + ", ..." * (len(ranks) > 8)
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _caught(run: Callable[[], _T]) -> tuple[_T | None, BaseException | None]:
    try:
        return run(), None
    except BaseException as error:
        return None, error
