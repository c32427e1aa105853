# SPDX-License-Identifier: Apache-2.0
"""SMP's way for ranks to tell each other things: any object that pickles, and its tensors fast.

    if smp.rank() == 0:                                  names = smp.allgather(name, smp.PP_GROUP)
        smp.broadcast(vocabulary, smp.WORLD)
    else:                                                if smp.pp_rank() == 0:
        vocabulary = smp.recv_from(0, smp.WORLD_RANK)        smp.send(mask, 1, smp.PP_RANK)

`broadcast` is for the root alone, as in SMP: all others of the group call `recv_from` with the
root. Every call returns when its rank's part is done, and waits no longer than the timeout of the
process group. Messages of two ranks arrive in the order they were sent, and never meet those of a
pipeline. CUDA tensors travel through the CPU, and arrive on the receiver's own device.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch.distributed as dist

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.core.layout import Axis
from smdist.modelparallel.torch.identity import CommGroup, RankType
from smdist.modelparallel.torch.mail import post
from smdist.modelparallel.torch.mail.letter import UnsentError
from smdist.modelparallel.torch.session import current

__all__ = [
    "UnsentError",
    "allgather",
    "barrier",
    "broadcast",
    "dp_barrier",
    "mp_barrier",
    "recv_from",
    "send",
    "share",
]

T = TypeVar("T")


def send(obj: object, dest: int, rank_type: RankType = RankType.WORLD_RANK) -> None:
    """Send an object to one rank; back when that one has taken it with `recv_from`.

    Args:
        dest: Who receives it, as `rank_type` counts.

    Raises:
        OptionError: There is no such rank, or it is this one.
    """
    post.post(obj, [_other(dest, rank_type, "dest")], current().mail)


def recv_from(src: int, rank_type: RankType = RankType.WORLD_RANK) -> Any:
    """Wait for what one rank sends here, or broadcasts, and return it.

    Args:
        src: Who sends it, as `rank_type` counts.

    Raises:
        OptionError: There is no such rank, or it is this one.
        UnsentError: It could not be pickled there.
    """
    return post.take(_other(src, rank_type, "src"), current().mail)


def broadcast(obj: object, group: CommGroup = CommGroup.WORLD) -> None:
    """Send an object to all others of a group that this rank is in; they call `recv_from`.

    Back when all of them have taken it.
    """
    session = current()
    others = [each for each in session.members(_axis(group)) if each != session.rank]
    post.post(obj, others, session.mail)


def allgather(obj: T, group: CommGroup = CommGroup.WORLD) -> list[T]:
    """Every rank of a group gives an object and gets those of all, in group order.

    Raises:
        UnsentError: One could not be pickled where it is.
    """
    return post.gather(obj, _process_group(group))


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Wait until every rank of a group is here."""
    post.wait_for_all(_process_group(group))


def dp_barrier() -> None:
    """Wait until every rank of this stage is here."""
    barrier(CommGroup.DP_GROUP)


def mp_barrier() -> None:
    """Wait until every rank of this replica is here."""
    barrier(CommGroup.MP_GROUP)


def share(obj: T, source: int, group: CommGroup | dist.ProcessGroup = CommGroup.PP_GROUP) -> T:
    """Give every rank of a group what one of them has; each calls this, and gets it.

    Args:
        obj: What the source gives; what others pass is ignored.
        source: Its number in the group.

    Raises:
        OptionError: There is no such rank.
        UnsentError: It could not be pickled there.
    """
    process_group = _process_group(group)
    _check("source", source, process_group.size())
    return post.share(obj, source, process_group)


def _process_group(group: CommGroup | dist.ProcessGroup) -> dist.ProcessGroup:
    return group if isinstance(group, dist.ProcessGroup) else current().group_of(_axis(group))


def _axis(group: object) -> Axis:
    require(
        isinstance(group, CommGroup),
        what=f"group is {group!r}",
        why="groups have names",
        mend=f"Pass one of {', '.join(f'smp.{each.name}' for each in CommGroup)}",
    )
    assert isinstance(group, CommGroup)
    return group.value


def _other(rank: int, rank_type: object, name: str) -> int:
    """The world's number of another rank."""
    require(
        isinstance(rank_type, RankType),
        what=f"rank_type is {rank_type!r}",
        why="it says in which group a rank is counted",
        mend=f"Pass one of {', '.join(f'smp.{each.name}' for each in RankType)}",
    )
    assert isinstance(rank_type, RankType)
    session = current()
    members = session.members(rank_type.value)
    _check(name, rank, len(members))
    require(
        members[rank] != session.rank,
        what=f"{name} is {rank} as a {rank_type.name}",
        why="that is this rank, and a message is between two",
        mend="Keep the object, or name another rank",
    )
    return members[rank]


def _check(name: str, rank: object, size: int) -> None:
    if type(rank) is not int or not 0 <= rank < size:
        raise OptionError(
            f"{name} is {rank!r}",
            f"the group has {f'ranks 0 to {size - 1}' if size > 1 else 'rank 0 alone'}",
            "Name one of them",
        )
