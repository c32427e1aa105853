# SPDX-License-Identifier: Apache-2.0
"""Which rank this is, of what, and beside whom: SMP's functions, each for the group it names.

pp   the ranks of a pipeline            rdp  those that hold the same parameters
tp   those that share each tensor       dp   those of the same stage, tp x rdp
mp   those of a replica, pp x tp
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import torch.distributed as dist

from smdist.modelparallel.core.layout import Axis
from smdist.modelparallel.torch.session import current


class CommGroup(Enum):
    """Whom a message is for."""

    WORLD = Axis.WORLD
    MP_GROUP = Axis.MP
    DP_GROUP = Axis.DP
    PP_GROUP = Axis.PP
    TP_GROUP = Axis.TP
    RDP_GROUP = Axis.RDP


class RankType(Enum):
    """In which group a rank is counted; where the group is not the world, in this rank's own."""

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


def rank() -> int:
    """This rank in the world."""
    return current().rank


def size() -> int:
    """Ranks of the world."""
    return current().size


def local_rank() -> int:
    """This rank on its host."""
    return current().local_rank


def local_size() -> int:
    """Ranks on this host."""
    return current().local_size


def pp_rank() -> int:
    """This rank in its pipeline."""
    return current().groups.pp_rank


def pp_size() -> int:
    """Ranks of a pipeline."""
    return current().groups.pp_size


def tp_rank() -> int:
    """This rank among those that share its tensors."""
    return current().groups.tp_rank


def tp_size() -> int:
    """Ranks that share each tensor."""
    return current().groups.tp_size


def rdp_rank() -> int:
    """This rank among those that hold the same parameters: which replica it belongs to."""
    return current().groups.rdp_rank


def rdp_size() -> int:
    """Replicas of each parameter."""
    return current().groups.rdp_size


def dp_rank() -> int:
    """This rank among those of the same stage."""
    return current().groups.dp_rank


def dp_size() -> int:
    """Ranks of the same stage."""
    return current().groups.dp_size


def mp_rank() -> int:
    """This rank of its replica of the model."""
    return current().groups.mp_rank


def mp_size() -> int:
    """Ranks of a replica of the model."""
    return current().groups.mp_size


def get_world_process_group() -> dist.ProcessGroup:
    """All ranks; the groups of these functions work with torch.distributed's collectives."""
    return current().group_of(Axis.WORLD)


def get_pp_process_group() -> dist.ProcessGroup:
    """This rank's pipeline."""
    return current().group_of(Axis.PP)


def get_tp_process_group() -> dist.ProcessGroup:
    """The ranks that share this one's tensors."""
    return current().group_of(Axis.TP)


def get_rdp_process_group() -> dist.ProcessGroup:
    """The ranks that hold this one's parameters."""
    return current().group_of(Axis.RDP)


def get_dp_process_group() -> dist.ProcessGroup:
    """The ranks of this one's stage."""
    return current().group_of(Axis.DP)


def get_mp_process_group() -> dist.ProcessGroup:
    """The ranks of this one's replica."""
    return current().group_of(Axis.MP)


def get_pp_group() -> list[int]:
    """World ranks of this rank's pipeline, in its order."""
    return list(current().members(Axis.PP))


def get_tp_group() -> list[int]:
    """World ranks of those that share this one's tensors."""
    return list(current().members(Axis.TP))


def get_rdp_group() -> list[int]:
    """World ranks of those that hold this one's parameters."""
    return list(current().members(Axis.RDP))


def get_dp_group() -> list[int]:
    """World ranks of those of this one's stage."""
    return list(current().members(Axis.DP))


def get_mp_group() -> list[int]:
    """World ranks of those of this one's replica."""
    return list(current().members(Axis.MP))
