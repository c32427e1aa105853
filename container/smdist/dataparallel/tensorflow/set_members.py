# SPDX-License-Identifier: Apache-2.0
"""Sets of ranks that run collectives of TensorFlow without the others."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, Final

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.process_sets import ProcessSet

__all__ = ["Members", "ProcessSet", "global_process_set", "members_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """Ranks of a process set, as a rank of it needs them for a collective.

    Attributes:
        group: Number of the engine's group; 0 has all ranks.
        ranks: Ranks of the job, in ascending order.
        rank: This rank's number among them.
    """

    group: int
    ranks: tuple[int, ...]
    rank: int

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def place_of(self, root_rank: Any) -> int:
        """Return the number among the members of a rank of the job.

        Raises:
            OptionError: It is no member.
        """
        is_number = isinstance(root_rank, Integral) and not isinstance(root_rank, bool)
        require(
            is_number and root_rank in self.ranks,
            what=f"root_rank is {root_rank!r}",
            why=f"the ranks of this process set are {list(self.ranks)}",
            hint="Pass one of these numbers",
            about="root_rank",
        )
        return self.ranks.index(int(root_rank))


global_process_set: Final = ProcessSet([])


def called_too_early(function: str) -> OptionError:
    """Return the error of a function, given by its name, that was called before init()."""
    return OptionError(
        f"{function}() was called before init()",
        "this process is not connected to the other ranks, or has called shutdown()",
        "Call init() of the same module first, such as hvd.init()",
        about=function,
        kind="too_early",
    )


def members_of(process_set: ProcessSet | None, function: str = "a collective") -> Members:
    """Return the members of a process set, of which this rank must be one; all ranks for None.

    Args:
        process_set: The process set.
        function: Name of the function that the script has called, for the error.

    Raises:
        OptionError: The set is not registered, or is no process set, or this rank is not in it;
            init() was not called.
    """
    chosen = global_process_set if process_set is None else process_set
    if not isinstance(chosen, ProcessSet):
        raise OptionError(
            f"process_set is {process_set!r}",
            "a collective runs over the ranks of a ProcessSet",
            "Pass a ProcessSet that add_process_set() has returned, or global_process_set",
            about="process_set",
        )
    if chosen is global_process_set and chosen.process_set_id is None:
        raise called_too_early(function)
    members: Members = chosen.communicator()
    return members
