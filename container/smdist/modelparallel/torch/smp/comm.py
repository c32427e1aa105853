# SPDX-License-Identifier: Apache-2.0
"""SMP's functions that send objects between ranks: any objects that pickle supports, and tensors.

    if smp.rank() == 0:
        smp.broadcast(vocabulary, smp.WORLD)
    else:
        vocabulary = smp.recv_from(0, smp.WORLD_RANK)

    names = smp.allgather(name, smp.PP_GROUP)

Only the root calls `broadcast`, as in SMP: all other ranks of the group call `recv_from` with the
root's number. A call that sends blocks until the receivers have the object; a call that receives
blocks until the object has arrived. A call fails after the timeout of the process group.

Messages between two ranks arrive in the order in which they were sent, and cannot be mixed up with
the pipeline's own messages. Tensors of a GPU are copied through the CPU to the receiver's own one.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch.distributed as dist

from smdist.modelparallel.core.comm_groups import (
    CommGroup,
    RankType,
    axis_of,
    world_rank_of_other,
)
from smdist.modelparallel.torch.session import current, object_collectives
from smdist.modelparallel.torch.session.object_collectives import UnsentError

__all__ = [
    "UnsentError",
    "allgather",
    "barrier",
    "broadcast",
    "dp_barrier",
    "mp_barrier",
    "recv_from",
    "send",
]

T = TypeVar("T")


def send(obj: object, dest: int, rank_type: RankType = RankType.WORLD_RANK) -> None:
    """Send an object to one rank; return when that rank has received it with `recv_from`.

    Args:
        obj: Any object that can be pickled.
        dest: Number of the receiving rank in the group of `rank_type`.
        rank_type: Group in which ranks are numbered, such as smp.PP_RANK; default: the world.

    Raises:
        OptionError: `dest` is no rank of the group, or is this rank itself.
    """
    object_collectives.send_object(obj, [_other(dest, rank_type, "dest")], current().message_group)


def recv_from(src: int, rank_type: RankType = RankType.WORLD_RANK) -> Any:
    """Receive an object that one rank sends with `send` or `broadcast`, and return it.

    Args:
        src: Number of the sending rank in the group of `rank_type`.
        rank_type: Group in which ranks are numbered, such as smp.PP_RANK; default: the world.

    Raises:
        OptionError: `src` is no rank of the group, or is this rank itself.
        UnsentError: The sender could not pickle the object.
    """
    return object_collectives.recv_object(_other(src, rank_type, "src"), current().message_group)


def broadcast(obj: object, group: CommGroup = CommGroup.WORLD) -> None:
    """Send an object to all other ranks of a group, which have to call `recv_from`.

    The call returns when all of them have received the object.

    Args:
        obj: Any object that can be pickled.
        group: Group of this rank, such as smp.PP_GROUP.
    """
    session = current()
    others = [each for each in session.members(axis_of(group)) if each != session.rank]
    object_collectives.send_object(obj, others, session.message_group)


def allgather(obj: T, group: CommGroup = CommGroup.WORLD) -> list[T]:
    """Exchange objects between all ranks of a group; every rank calls it with its own object.

    Args:
        obj: Any object that can be pickled.
        group: Group of this rank, such as smp.PP_GROUP.

    Returns:
        Objects of all ranks, in the order of ranks in the group.

    Raises:
        UnsentError: A rank could not pickle its object.
    """
    return object_collectives.all_gather_object(obj, _process_group(group))


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Block until every rank of a group has called this function."""
    object_collectives.cpu_barrier(_process_group(group))


def dp_barrier() -> None:
    """Block until every rank that runs the same stage (DP_GROUP) has called this function."""
    barrier(CommGroup.DP_GROUP)


def mp_barrier() -> None:
    """Block until every rank of this rank's replica (MP_GROUP) has called this function."""
    barrier(CommGroup.MP_GROUP)


def _process_group(group: CommGroup) -> dist.ProcessGroup:
    return current().group_of(axis_of(group))


def _other(rank: int, rank_type: object, name: str) -> int:
    session = current()
    return world_rank_of_other(rank, rank_type, name, session.members, session.rank)
