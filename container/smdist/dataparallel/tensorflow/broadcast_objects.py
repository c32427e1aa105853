# SPDX-License-Identifier: Apache-2.0
"""Broadcast and all-gather of pickled Python objects, such as settings and results."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.tensorflow import basics, collectives
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.operation_names import is_session_graph, named
from smdist.dataparallel.tensorflow.set_members import ProcessSet, members_of

_FAILED = -1  # sent instead of the number of bytes of an object that cannot be pickled


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Send the object of `root_rank` to all ranks and return it.

    All ranks must call it, outside of a tf.function. Where code builds the graph of a session of
    tf.compat.v1, the call neither adds operations to that graph nor uses its session. The received
    bytes are unpickled, so the ranks of a job must trust each other.

    Args:
        obj: The object to send; ignored on the other ranks.
        root_rank: The rank that sends.
        name: Name by which ranks match the operations, the same on all ranks; None to match them
            by the order of the calls.
        process_set: Ranks that take part; by default all.

    Raises:
        OptionError: The object cannot be pickled (raised on all ranks), the call is inside a
            tf.function, or the root rank does not exist.
    """
    _check_eager("broadcast_object")
    members_of(process_set, "broadcast_object").place_of(root_rank)
    is_root = basics.rank() == root_rank
    packed, fault = _pack(obj) if is_root else (b"", None)
    with named(name, "smdist_broadcast_object"):
        size = np.array([_FAILED if fault else len(packed)], np.int64)
        length = int(_computed(collectives.broadcast, size, root_rank, process_set=process_set)[0])
        _check_packed(fault, [root_rank] if length == _FAILED else [], "broadcast_object")
        mine = np.frombuffer(packed, np.uint8) if is_root else np.zeros([length], np.uint8)
        packed = _computed(collectives.broadcast, mine, root_rank, process_set=process_set)
    return _unpack(packed.tobytes())


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Callable[[Any], Any]:
    """Return a function that sends an object of `root_rank` to all ranks and returns it.

    Args:
        root_rank: The rank that sends.
        session: Horovod's argument; must be None.
        name: Name by which ranks match the operations, the same on all ranks; None to match them
            by the order of the calls.
        process_set: Ranks that take part; by default all.

    Raises:
        OptionError: The root rank does not exist, or a session is given.
    """
    require(
        session is None,
        what=f"session is {session!r}",
        why="objects are sent without the session of the script",
        hint="Leave session out",
        about="session",
    )
    members_of(process_set, "broadcast_object_fn").place_of(root_rank)
    return partial(broadcast_object, root_rank=root_rank, name=name, process_set=process_set)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet | None = None
) -> list[Any]:
    """Send this rank's object to all ranks; return the objects of all ranks, rank 0's first.

    All ranks must call it, outside of a tf.function. Where code builds the graph of a session of
    tf.compat.v1, the call neither adds operations to that graph nor uses its session. The received
    bytes are unpickled, so the ranks of a job must trust each other.

    Args:
        obj: This rank's object.
        name: Name by which ranks match the operations, the same on all ranks; None to match them
            by the order of the calls.
        process_set: Ranks that take part; by default all.

    Raises:
        OptionError: An object of any rank cannot be pickled (raised on all ranks), or the call
            is inside a tf.function.
    """
    _check_eager("allgather_object")
    members_of(process_set, "allgather_object")
    packed, fault = _pack(obj)
    with named(name, "smdist_allgather_object"):
        size = np.array([_FAILED if fault else len(packed)], np.int64)
        lengths = _computed(collectives.allgather, size, process_set=process_set)
        _check_packed(fault, np.flatnonzero(lengths == _FAILED).tolist(), "allgather_object")
        mine = np.frombuffer(packed, np.uint8)
        every = _computed(collectives.allgather, mine, process_set=process_set).tobytes()
    ends = np.cumsum(lengths)
    return [_unpack(every[e - length : e]) for e, length in zip(ends, lengths, strict=True)]


def _pack(obj: Any) -> tuple[bytes, Exception | None]:
    try:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), None
    except Exception as error:  # the object's own code may raise any error
        return b"", error


def _unpack(packed: bytes) -> Any:
    return pickle.loads(packed)  # noqa: S301  of another rank of the same job


def _computed(collective: Callable[..., Any], array: Any, *args: Any, **options: Any) -> Any:
    """Return the result of a collective of a NumPy array as a NumPy array.

    Where code builds the graph of a session, a graph and a session of their own compute it.
    """
    if not is_session_graph():
        return collective(tf.constant(array), *args, **options).numpy()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(collective(tf.constant(array), *args, **options))


def _check_packed(fault: Exception | None, ranks: list[int], name: str) -> None:
    if not ranks:
        return
    where = f"rank {basics.rank() if fault else ranks[0]}"
    raise OptionError(
        f"{name}() received an object on {where} that cannot be pickled",
        str(fault) if fault else "the error on that rank has the reason",
        "Pass an object that pickle supports, such as numbers, texts, lists, dicts and arrays",
        about=name,
        kind="not_picklable",
    ) from fault


def _check_eager(name: str) -> None:
    require(
        tf.executing_eagerly() or not tf.compat.v1.get_default_graph().building_function,
        what=f"{name}() was called inside a tf.function",
        why="objects are pickled by Python code, which runs only once, when the function is traced",
        hint="Call it outside of the tf.function, or use broadcast() or allgather() for tensors",
        about=name,
        kind="traced",
    )
