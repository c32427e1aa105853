# SPDX-License-Identifier: Apache-2.0
"""Steps that all ranks do together to write or read a checkpoint.

If one rank fails, all ranks raise the same error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import (
    CheckpointError,
    RankFailure,
    failure_of,
)
from smdist.modelparallel.torch.session.rank_team import RankTeam, caught

_T = TypeVar("_T")


class Team(RankTeam):
    """Ranks that write or read a checkpoint together."""

    __slots__ = ()

    def do(self, what: str, run: Callable[[], _T], *, hint: str) -> _T:
        """Run a function on every rank, and return its result; all ranks must call this.

        Args:
            what: First words of the error if a rank fails, such as "checkpoint 'a' cannot be
                written".
            run: Function without arguments; it must not communicate with other ranks.
            hint: Advice for the user, at the end of the error.

        Raises:
            CheckpointError: The function failed on at least one rank. All ranks raise this error,
                which names the failed ranks.
            OptionError: The function failed on all ranks, each time with an equal OptionError.
        """
        value, error = caught(run)
        failed = self.failures(error, failure_of)
        if not failed:
            return value  # type: ignore[return-value]
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
        is_same = len(failed) == self.size and len(set(failed.values())) == 1
        if isinstance(error, OptionError) and is_same:
            raise error
        raise failure(what, failed, hint) from error

    def do_first(self, what: str, run: Callable[[], _T], *, hint: str) -> _T:
        """Run a function on the team's rank 0, and return its result on all ranks.

        All ranks must call this.

        Args:
            what: First words of the error if the function fails, such as "checkpoint 'a' cannot be
                read".
            run: Function without arguments; it must not communicate with other ranks.
            hint: Advice for the user, at the end of the error.

        Raises:
            OptionError: The function raised an OptionError; all ranks raise this error.
            CheckpointError: The function raised any other error; all ranks raise a CheckpointError
                with the error's text.
        """

        def portable(error: BaseException) -> OptionError:
            if isinstance(error, OptionError):
                return error
            return failure(what, {self.in_world(0): failure_of(error)}, hint)

        return self.run_on_first(run, portable)


def failure(what: str, failed: Mapping[int, RankFailure], hint: str) -> CheckpointError:
    """Return one error for the failures of several ranks.

    Args:
        what: First words of the error, such as "checkpoint 'a' cannot be written".
        failed: Error of each failed rank, by rank. Ranks with equal texts are listed together. If
            all errors have the same `kind`, the returned error has it, too; likewise `about`. It
            has the files of all errors.
        hint: Advice for the user, at the end of the error.
    """
    ranks: dict[str, list[int]] = {}
    for rank, each in failed.items():
        ranks.setdefault(each.text, []).append(rank)
    whys = [f"{_names(of)}: {text}" for text, of in ranks.items()]
    abouts = {each.about for each in failed.values()}
    kinds = {each.kind for each in failed.values()}
    about = abouts.pop() if len(abouts) == 1 else ()
    kind = kinds.pop() if len(kinds) == 1 else "failed"
    files = tuple(sorted({name for each in failed.values() for name in each.files}))
    why = "; ".join(whys)
    return CheckpointError(what, why, hint, about, kind, ranks=tuple(failed), files=files)


def _names(ranks: list[int]) -> str:
    """Return a list of ranks as text: "rank 3", or "ranks 0, 1, 2" with at most eight numbers."""
    shown = ", ".join(map(str, ranks[:8])) + ", ..." * (len(ranks) > 8)
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
