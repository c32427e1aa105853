# SPDX-License-Identifier: Apache-2.0
"""Registration of process sets, at init() or later, by all ranks together."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.process_sets import check_init_arguments, new_process_set
from smdist.dataparallel.tensorflow import basics, row_collectives
from smdist.dataparallel.tensorflow.op_library import compiled, tf
from smdist.dataparallel.tensorflow.set_members import (
    Members,
    ProcessSet,
    global_process_set,
    members_of,
)


def init(comm: Any = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """Connect this rank to all other ranks of the job; a second call does nothing.

    All ranks must call it before all other functions of this package. A process that was
    not started as a rank becomes the only rank of a job of size 1.

    Args:
        comm: None, or a list of all ranks of the job. Other lists, and communicators of MPI, are
            refused: start a job with these ranks, or use process sets.
        process_sets: Process sets to register, in the same order on all ranks. Further sets can
            always be added with add_process_set(); "dynamic" is the same as none.

    Raises:
        OptionError: An argument is wrong, some environment variables of the rank are missing or
            wrong, or this process was forked from a rank.
        LaunchError: A rank was missing after the start timeout, or was lost.
        SkewError: Ranks run different releases of the runtime.
        SetupError: This runtime was built without TensorFlow.
    """
    was_connected = basics.is_initialized()
    basics.init()
    sets = check_init_arguments(comm, process_sets, basics.size())
    if not was_connected:
        for each in sets:
            add_process_set(each)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set, or a list of ranks; all ranks of the job must call it.

    Raises:
        OptionError: A rank does not exist, or a registered set has the same ranks.
        tf.errors.FailedPreconditionError: The ranks of the set differ between ranks.
    """
    sets = basics.process_sets("add_process_set")
    added = new_process_set(process_set, basics.size(), sets)
    number = basics.next_process_set()
    _agree(f"add {number} {added.ranks}")
    members = _members(number, added.ranks) if basics.rank() in added.ranks else None
    added.bind(number, added.ranks, basics.rank(), members)
    sets[number] = added
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; all ranks of the job must call it, without running operations of it.

    Returns:
        True if the set was removed; False for the set of all ranks and for unregistered sets.
    """
    number, sets = process_set.process_set_id, basics.process_sets("remove_process_set")
    if not number or sets.get(number) is not process_set:
        return False
    _agree(f"remove {number}")
    del sets[number]
    process_set.bind(None, process_set.ranks, -1, None)
    return True


def process_set_included_op(process_set: ProcessSet | int = 0, name: str | None = None) -> Any:
    """Return 1 if this rank is in a process set, else 0, as int32 [].

    Args:
        process_set: A registered set, or its number; 0 is the set of all ranks.
        name: Name in the graph.

    Raises:
        OptionError: No registered set has this number.
    """
    number = process_set.process_set_id if isinstance(process_set, ProcessSet) else process_set
    sets = basics.process_sets("process_set_included_op")
    require(
        number in sets,
        what=f"process_set is {process_set!r}",
        why=f"the registered sets have the numbers {sorted(sets)}",
        hint="Register it with add_process_set() on all ranks first",
        about="process_set",
    )
    is_included = number is not None and sets[number].included()
    return tf.constant(int(is_included), tf.int32, name=name)


def _members(number: int, ranks: list[int]) -> Members:
    # a positive int32, which an attribute of an op can hold
    group = (zlib.crc32(f"process_set/{number}".encode()) & 0x7FFFFFFF) or 1
    compiled().add_group(group, ranks)
    return Members(group=group, ranks=tuple(ranks), rank=ranks.index(basics.rank()))


def _agree(text: str) -> None:
    """Wait until all ranks have called this with the same text."""
    if basics.size() == 1:
        return
    with tf.init_scope():
        mine = tf.zeros([0, zlib.crc32(text.encode())])
        row_collectives.broadcast(mine, 0, members_of(global_process_set))
