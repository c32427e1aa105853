# SPDX-License-Identifier: Apache-2.0
"""SMP's functions that send objects between ranks: any objects that pickle supports.

    if smp.rank() == 0:
        smp.broadcast(vocabulary, smp.WORLD)
    else:
        vocabulary = smp.recv_from(0, smp.WORLD_RANK)

Only the root calls `broadcast`, as in SMP: all other ranks of the group call `recv_from` with the
root's number. Messages between two ranks arrive in the order in which they were sent, and cannot be
mixed up with the messages of stages.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.tensorflow import op_library
from smdist.dataparallel.tensorflow.broadcast_objects import allgather_object
from smdist.modelparallel.core.comm_groups import (
    CommGroup,
    RankType,
    axis_of,
    world_rank_of_other,
)
from smdist.modelparallel.tensorflow.keras_api.keras_ranks import members
from smdist.modelparallel.tensorflow.keras_session import current_session

_TAG: Final = 2**32 - 2  # tag of lengths; tags have 32 bits, and those of all else are below
_BODY: Final = _TAG + 1


def send(obj: object, dest: int, rank_type: RankType = RankType.WORLD_RANK) -> None:
    """Send an object to one rank; return when that rank receives it with `recv_from`.

    Args:
        obj: Any object that can be pickled.
        dest: Number of the receiving rank in the group of `rank_type`.
        rank_type: Group in which ranks are numbered, such as smp.PP_RANK; default: the world.

    Raises:
        OptionError: `dest` is no rank of the group, or is this rank itself; or the object cannot be
            pickled, and the receiver gets the same error.
    """
    _send(obj, [_other(dest, rank_type, "dest")])


def recv_from(src: int, rank_type: RankType = RankType.WORLD_RANK) -> Any:
    """Receive an object that one rank sends with `send` or `broadcast`, and return it.

    Args:
        src: Number of the sending rank in the group of `rank_type`.
        rank_type: Group in which ranks are numbered, such as smp.PP_RANK; default: the world.

    Raises:
        OptionError: `src` is no rank of the group, or is this rank itself; or the sender could not
            pickle the object.
    """
    rank = _other(src, rank_type, "src")
    [length] = _received([1], tf.int64, rank, _TAG)
    body = _received([abs(int(length))], tf.uint8, rank, _BODY)
    found = pickle.loads(body.tobytes())  # noqa: S301  ranks of one job trust each other
    if length < 0:  # an error in place of the object
        raise found
    return found


def broadcast(obj: object, group: CommGroup = CommGroup.WORLD) -> None:
    """Send an object to all other ranks of a group, which have to call `recv_from`.

    Args:
        obj: Any object that can be pickled.
        group: Group of this rank, such as smp.PP_GROUP.

    Raises:
        OptionError: `group` is no group, or the object cannot be pickled.
    """
    me = current_session().rank
    _send(obj, [each for each in members(axis_of(group)) if each != me])


def allgather(obj: Any, group: CommGroup = CommGroup.WORLD) -> list[Any]:
    """Return the objects of all ranks of a group, in the order of their ranks.

    All ranks of the world must call this, also with a smaller group.

    Args:
        obj: Object that pickle supports.
        group: Group that contains this rank.
    """
    ranks = members(axis_of(group))
    every = allgather_object(obj)
    return [every[each] for each in ranks]


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Wait until all ranks have come; all ranks of the world must call this.

    Args:
        group: Group that contains this rank; a wait for the world is a wait for the group, too.
    """
    allgather(None, group)


def dp_barrier() -> None:
    """Wait for the ranks of the same stage; all ranks of the world must call this."""
    barrier(CommGroup.DP_GROUP)


def mp_barrier() -> None:
    """Wait for the ranks of this replica; all ranks of the world must call this."""
    barrier(CommGroup.MP_GROUP)


def _other(rank: int, rank_type: object, name: str) -> int:
    me = current_session().rank
    return world_rank_of_other(rank, rank_type, name, members, me)


def _send(obj: object, ranks: Iterable[int]) -> None:
    sign, fault = 1, None
    try:
        body = pickle.dumps(obj)
    except Exception as error:  # any error: __reduce__ is the user's code
        fault = OptionError(
            f"an object of {type(obj).__name__} cannot be sent",
            f"{type(error).__name__}: {error}",
            "Send an object that pickle supports",
            about="obj",
            kind="not_picklable",
        )
        sign, body = -1, pickle.dumps(fault)
    data = tf.constant(np.frombuffer(body, np.uint8))
    length = tf.constant([sign * len(body)], tf.int64)
    sends = [
        (op_library.start_send(value, rank, tag), value.dtype)
        for rank in ranks
        for value, tag in ((length, _TAG), (data, _BODY))
    ]
    for handle, dtype in sends:
        op_library.wait_send(handle, dtype)
    if fault is not None:
        raise fault


def _received(shape: list[int], dtype: Any, rank: int, tag: int) -> Any:
    handle = op_library.start_receive(shape, dtype, rank, tag)
    return op_library.wait_move(handle, dtype, shape).numpy()
