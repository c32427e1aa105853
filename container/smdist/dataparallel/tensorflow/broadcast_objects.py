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
from smdist.dataparallel.tensorflow.variable_broadcast import check_root

_FAILED = -1  # sent instead of the number of bytes of an object that cannot be pickled


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None) -> Any:
    """Send the object of `root_rank` to all ranks and return it.

    All ranks must call it, outside of a tf.function. The received bytes are unpickled, so the
    ranks of a job must trust each other.

    Args:
        obj: The object to send; ignored on the other ranks.
        root_rank: The rank that sends.
        name: Name scope of the operations.

    Raises:
        OptionError: The object cannot be pickled (raised on all ranks), the call is inside a
            tf.function, or the root rank does not exist.
    """
    _check_eager("broadcast_object")
    check_root(root_rank)
    is_root = basics.rank() == root_rank
    packed, fault = _pack(obj) if is_root else (b"", None)
    with tf.name_scope(name or "smdist_broadcast_object"):
        length = tf.constant([_FAILED if fault else len(packed)], tf.int64)
        length = int(collectives.broadcast(length, root_rank)[0])
        _check_packed(fault, [root_rank] if length == _FAILED else [], "broadcast_object")
        mine = _tensor(packed) if is_root else tf.zeros([length], tf.uint8)
        packed = collectives.broadcast(mine, root_rank).numpy().tobytes()
    return _unpack(packed)


def broadcast_object_fn(root_rank: int = 0, name: str | None = None) -> Callable[[Any], Any]:
    """Return a function that sends an object of `root_rank` to all ranks and returns it.

    Args:
        root_rank: The rank that sends.
        name: Name scope of the operations.

    Raises:
        OptionError: The root rank does not exist.
    """
    check_root(root_rank)
    return partial(broadcast_object, root_rank=root_rank, name=name)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Send this rank's object to all ranks; return the objects of all ranks, rank 0's first.

    All ranks must call it, outside of a tf.function. The received bytes are unpickled, so the
    ranks of a job must trust each other.

    Args:
        obj: This rank's object.
        name: Name scope of the operations.

    Raises:
        OptionError: An object of any rank cannot be pickled (raised on all ranks), or the call
            is inside a tf.function.
    """
    _check_eager("allgather_object")
    packed, fault = _pack(obj)
    with tf.name_scope(name or "smdist_allgather_object"):
        length = tf.constant([_FAILED if fault else len(packed)], tf.int64)
        lengths = collectives.allgather(length).numpy()
        _check_packed(fault, np.flatnonzero(lengths == _FAILED).tolist(), "allgather_object")
        every = collectives.allgather(_tensor(packed)).numpy().tobytes()
    ends = np.cumsum(lengths)
    return [_unpack(every[e - length : e]) for e, length in zip(ends, lengths, strict=True)]


def _pack(obj: Any) -> tuple[bytes, Exception | None]:
    try:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), None
    except Exception as error:  # the object's own code may raise any error
        return b"", error


def _unpack(packed: bytes) -> Any:
    return pickle.loads(packed)  # noqa: S301  of another rank of the same job


def _tensor(packed: bytes) -> Any:
    return tf.constant(np.frombuffer(packed, np.uint8))


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
        tf.executing_eagerly(),
        what=f"{name}() was called inside a tf.function",
        why="objects are pickled by Python code, which runs only once, when the function is traced",
        hint="Call it outside of the tf.function, or use broadcast() or allgather() for tensors",
        about=name,
        kind="traced",
    )
