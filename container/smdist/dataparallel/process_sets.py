# SPDX-License-Identifier: Apache-2.0
"""Sets of ranks that run collectives without the others, and checks of their registration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sagemaker_dist.errors import OptionError, raise_all, require

_DYNAMIC: Final = "dynamic"  # Horovod's word for sets that are registered later


class ProcessSet:
    """Ranks that run collectives without the others.

        odd = hvd.ProcessSet([1, 3])
        hvd.init(process_sets=[odd])
        if odd.included():
            hvd.allreduce(tensor, process_set=odd)

    Attributes:
        ranks: The ranks in ascending order.
        process_set_id: Number of the set, 0 for all ranks; None before init() or
            add_process_set(), and after remove_process_set() or shutdown().

    Args:
        ranks: Different ranks of the job.

    Raises:
        OptionError: A rank is given twice, or is no number.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        given = _numbers(ranks)
        require(
            len(set(given)) == len(given) and all(rank >= 0 for rank in given),
            what=f"ranks is {given}",
            why="a process set has each of its ranks once, and ranks are numbered from 0",
            hint="Pass different numbers from 0",
            about="ranks",
        )
        self.ranks: list[int] = sorted(given)
        self.process_set_id: int | None = None
        self._rank = -1
        self._was_removed = False
        self._communicator: Any = None

    def included(self) -> bool:
        """Return True if this rank is in the set.

        Raises:
            OptionError: The set is not registered.
        """
        self._check_registered()
        return self._rank in self.ranks

    def rank(self) -> int:
        """Return this rank's number in the set, from 0.

        Raises:
            OptionError: This rank is not in the set, or the set is not registered.
        """
        return int(self.communicator().rank)

    def size(self) -> int:
        """Return the number of ranks in the set.

        Raises:
            OptionError: The set is not registered.
        """
        self._check_registered()
        return len(self.ranks)

    def communicator(self) -> Any:
        """Return what the framework of the set needs for its collectives; it has a `rank`.

        Raises:
            OptionError: This rank is not in the set, or the set is not registered.
        """
        self._check_registered()
        if self._communicator is None:
            raise OptionError(
                f"rank {self._rank} has called a collective of the process set {self.ranks}",
                "this rank is not in the set",
                "Call it only if process_set.included() returns True",
                about="process_set",
                kind="not_included",
            )
        return self._communicator

    def bind(self, number: int | None, ranks: list[int], rank: int, communicator: Any) -> None:
        """Register the set under a number, or with None forget it."""
        self._was_removed = number is None and (
            self.process_set_id is not None or self._was_removed
        )
        self.process_set_id, self.ranks = number, ranks
        self._rank, self._communicator = rank, communicator

    def _check_registered(self) -> None:
        require(
            not self._was_removed,
            what=f"the process set {self.ranks} is used after it was removed",
            why="remove_process_set() was called with it, or shutdown() was",
            hint="Call init(process_sets=[...]) or add_process_set() on all ranks again",
            about="process_set",
            kind="removed",
        )
        require(
            self.process_set_id is not None,
            what=f"the process set {self.ranks} is used before it is registered",
            why="it has no number yet, or init() was not called",
            hint="Call init(process_sets=[...]) or add_process_set() on all ranks first",
            about="process_set",
            kind="too_early",
        )

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


def check_init_arguments(
    comm: Any, process_sets: Iterable[ProcessSet] | str | None, size: int
) -> list[ProcessSet]:
    """Check the arguments of init(), and return the process sets to register.

    Args:
        comm: None, or a list of all ranks of the job.
        process_sets: The sets, or "dynamic" or None for none.
        size: Number of ranks of the job.

    Raises:
        OptionError: An argument is wrong; if both are, the error has both.
    """
    faults = []
    is_everyone = isinstance(comm, Sequence) and sorted(comm) in ([], list(range(size)))
    if comm is not None and not is_everyone:
        faults.append(
            OptionError(
                f"comm is {comm!r}",
                f"a job has all ranks that were started, here 0 to {size - 1}, and no MPI",
                "Leave comm out, and use process_sets for collectives of some ranks",
                about="comm",
            )
        )
    is_none = process_sets is None or process_sets == _DYNAMIC
    given: Any = [] if is_none else process_sets
    sets = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(each, ProcessSet) for each in sets):
        faults.append(
            OptionError(
                f"process_sets is {process_sets!r}",
                'it must be a list of ProcessSet objects, or "dynamic"',
                "Pass process_sets=[ProcessSet([0, 1])]",
                about="process_sets",
            )
        )
    raise_all(faults)
    return sets


def new_process_set(
    given: ProcessSet | Sequence[int], size: int, registered: Mapping[int, ProcessSet]
) -> ProcessSet:
    """Return the process set to register: the given one, or one of the given ranks.

    Args:
        given: A process set, or its ranks.
        size: Number of ranks of the job.
        registered: The process sets that are registered, by number.

    Raises:
        OptionError: A rank does not exist, or a registered set has the same ranks.
    """
    added = given if isinstance(given, ProcessSet) else ProcessSet(given)
    require(
        bool(added.ranks) and all(rank < size for rank in added.ranks),
        what=f"a process set has the ranks {added.ranks}",
        why=f"it needs at least one rank, and the job has the ranks 0 to {size - 1}",
        hint="Pass ranks of this job",
        about="process_set",
    )
    same = next((each for each in registered.values() if each.ranks == added.ranks), None)
    require(
        same is None,
        what=f"a process set has the ranks {added.ranks}",
        why=f"{same} is registered with the same ranks",
        hint="Use that set, or remove it first",
        about="process_set",
        kind="twice",
    )
    return added


def _numbers(ranks: Any) -> list[int]:
    """Return the ranks as numbers.

    Raises:
        OptionError: `ranks` is no list of numbers, but for example a communicator of MPI.
    """
    try:
        given = list(ranks)
    except TypeError:
        given = [None]
    require(
        all(isinstance(rank, int) and not isinstance(rank, bool) for rank in given),
        what=f"ranks is {ranks!r}",
        why="a process set is a list of ranks; smdist has no MPI communicators",
        hint="Pass a list of numbers, such as [0, 2]",
        about="ranks",
    )
    return given
