# SPDX-License-Identifier: Apache-2.0
"""Steps that all ranks do together to write or read a checkpoint.

If one rank fails, all ranks raise the same error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError, in_words
from smdist.modelparallel.torch.session.rank_team import RankTeam, caught

_T = TypeVar("_T")


class Team(RankTeam):
    """Ranks that write or read a checkpoint together."""

    __slots__ = ()

    def do(self, what: str, run: Callable[[], _T], *, hint: str) -> _T:
        """Run a function on every rank and return its result; collective.

        Args:
            what: First words of the error if a rank fails: "checkpoint 'a' cannot be written".
            run: Function without arguments; it must not communicate with other ranks.
            hint: Advice for the user, at the end of the error.

        Raises:
            CheckpointError: The function failed on some ranks; every rank raises this error, which
                names them.
            OptionError: The function raised this same error on all ranks.
        """
        value, error = caught(run)
        failed = self.failures(error, in_words)
        if not failed:
            return value  # type: ignore[return-value]
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
        is_same = len(failed) == self.size and len(set(failed.values())) == 1
        if isinstance(error, OptionError) and is_same:
            raise error
        raise failure(what, failed, hint) from error

    def do_first(self, what: str, run: Callable[[], _T], *, hint: str) -> _T:
        """Run a function on rank 0 of the team and return its result on all ranks; collective.

        Args:
            what: First words of the error if it fails: "checkpoint 'a' cannot be read".
            run: Function without arguments; it must not communicate with other ranks.
            hint: Advice for the user, at the end of the error.

        Raises:
            OptionError: The function failed: its own OptionError, or a CheckpointError for any
                other error; the same on all ranks.
        """

        def portable(error: BaseException) -> OptionError:
            if isinstance(error, OptionError):
                return error
            return failure(what, {self.in_world(0): in_words(error)}, hint)

        return self.run_on_first(run, portable)


def failure(what: str, failed: dict[int, str], hint: str) -> CheckpointError:
    """Return one error for the failures of several ranks.

    Args:
        what: First words of the error: "checkpoint 'a' cannot be written".
        failed: Text of each failed rank's error, by rank; ranks with equal texts are grouped.
        hint: Advice for the user, at the end of the error.
    """
    ranks: dict[str, list[int]] = {}
    for rank, text in failed.items():
        ranks.setdefault(text, []).append(rank)
    whys = [f"{_names(of)}: {text}" for text, of in ranks.items()]
    return CheckpointError(what, "; ".join(whys), hint)


def _names(ranks: list[int]) -> str:
    """Return a list of ranks as text: "rank 3", or "ranks 0, 1, 2" with at most eight numbers."""
    shown = ", ".join(map(str, ranks[:8])) + ", ..." * (len(ranks) > 8)
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
