# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks under SMP's names, and the checks of arguments that name a group or a rank.

The functions are the same for PyTorch and TensorFlow: they need the members of a group alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.rank_layout import Axis


class CommGroup(Enum):
    """Groups that contain this rank, for `smp.broadcast`, `smp.allgather` and `smp.barrier`.

    The names are those of SMP v1: DP_GROUP, for example, is the data parallel group.
    """

    WORLD = Axis.WORLD
    MP_GROUP = Axis.MP
    DP_GROUP = Axis.DP
    PP_GROUP = Axis.PP
    TP_GROUP = Axis.TP
    RDP_GROUP = Axis.RDP


class RankType(Enum):
    """Group in which `smp.send` and `smp.recv_from` number the other rank.

    The group contains this rank. PP_RANK, for example, stands for the pipeline of this rank.
    """

    WORLD_RANK = Axis.WORLD
    MP_RANK = Axis.MP
    DP_RANK = Axis.DP
    PP_RANK = Axis.PP
    TP_RANK = Axis.TP
    RDP_RANK = Axis.RDP


WORLD: Final = CommGroup.WORLD
MP_GROUP: Final = CommGroup.MP_GROUP
DP_GROUP: Final = CommGroup.DP_GROUP
PP_GROUP: Final = CommGroup.PP_GROUP
TP_GROUP: Final = CommGroup.TP_GROUP
RDP_GROUP: Final = CommGroup.RDP_GROUP
WORLD_RANK: Final = RankType.WORLD_RANK
MP_RANK: Final = RankType.MP_RANK
DP_RANK: Final = RankType.DP_RANK
PP_RANK: Final = RankType.PP_RANK
TP_RANK: Final = RankType.TP_RANK
RDP_RANK: Final = RankType.RDP_RANK


def axis_of(group: object) -> Axis:
    """Return the axis of a group.

    Raises:
        OptionError: `group` is no group of smp.
    """
    if not isinstance(group, CommGroup):
        raise OptionError(
            f"group is {group!r}",
            "it has to be a group of smp",
            f"Pass one of {', '.join(f'smp.{each.name}' for each in CommGroup)}",
            about="group",
            kind="unknown",
        )
    return group.value


def world_rank_of_other(
    rank: int, rank_type: object, name: str, members_of: Callable[[Axis], Sequence[int]], me: int
) -> int:
    """Return the world rank of another rank, from the number of this other rank in a group.

    Args:
        rank: Number of the rank in the group.
        rank_type: Group in which the rank is numbered.
        name: Name of the argument in errors.
        members_of: Function that returns the world ranks of this rank's group of an axis.
        me: World rank of this process.

    Raises:
        OptionError: `rank` is no rank of the group, or is this rank itself.
    """
    if not isinstance(rank_type, RankType):
        raise OptionError(
            f"rank_type is {rank_type!r}",
            "it has to be a member of smp.RankType",
            f"Pass one of {', '.join(f'smp.{each.name}' for each in RankType)}",
            about="rank_type",
            kind="unknown",
        )
    members = members_of(rank_type.value)
    _check(name, rank, len(members))
    if members[rank] == me:
        raise OptionError(
            f"{name} is {rank} as a {rank_type.name}",
            "that is this rank itself, and a rank cannot send to itself or receive from itself",
            "Pass the number of another rank",
            about=name,
            kind="this_rank",
        )
    return members[rank]


def _check(name: str, rank: object, size: int) -> None:
    if type(rank) is not int or not 0 <= rank < size:
        raise OptionError(
            f"{name} is {rank!r}",
            f"the group has {f'ranks 0 to {size - 1}' if size > 1 else 'rank 0 alone'}",
            "Pass the number of a rank of this group",
            about=name,
            kind="unknown",
        )
