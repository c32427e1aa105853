# SPDX-License-Identifier: Apache-2.0
"""Ranks, sizes and groups under SMP's function names, each with the prefix of its group.

pp   the ranks of a pipeline                    rdp  the ranks with the same parameters
tp   the ranks over which tensors are split     dp   the ranks of the same stage, tp x rdp
mp   the ranks of a replica, pp x tp
"""

from __future__ import annotations

from typing import Final

import torch.distributed as dist

from smdist.modelparallel.core.comm_groups import CommGroup, RankType
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.torch.session import current

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
    """Return the number of this rank in the world."""
    return current().rank


def size() -> int:
    """Return the number of ranks in the world."""
    return current().size


def local_rank() -> int:
    """Return the number of this rank on its host."""
    return current().local_rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return current().local_size


def pp_rank() -> int:
    """Return the number of this rank in its pipeline, from 0."""
    return current().groups.pp_rank


def pp_size() -> int:
    """Return the number of ranks in a pipeline."""
    return current().groups.pp_size


def tp_rank() -> int:
    """Return this rank's tensor parallel rank: always 0, since tensors are not split."""
    return current().groups.tp_rank


def tp_size() -> int:
    """Return the number of ranks over which each tensor is split: always 1."""
    return current().groups.tp_size


def rdp_rank() -> int:
    """Return the number of this rank among the ranks with the same parameters, from 0."""
    return current().groups.rdp_rank


def rdp_size() -> int:
    """Return the number of replicas of each parameter."""
    return current().groups.rdp_size


def dp_rank() -> int:
    """Return the number of this rank among the ranks of the same stage, from 0."""
    return current().groups.dp_rank


def dp_size() -> int:
    """Return the number of ranks of the same stage."""
    return current().groups.dp_size


def mp_rank() -> int:
    """Return the number of this rank in its replica of the model, from 0."""
    return current().groups.mp_rank


def mp_size() -> int:
    """Return the number of ranks in a replica of the model."""
    return current().groups.mp_size


def get_world_process_group() -> dist.ProcessGroup:
    """Return the process group of all ranks, for collectives of torch.distributed."""
    return current().group_of(Axis.WORLD)


def get_pp_process_group() -> dist.ProcessGroup:
    """Return the process group of this rank's pipeline."""
    return current().group_of(Axis.PP)


def get_tp_process_group() -> dist.ProcessGroup:
    """Return the process group of the ranks over which tensors are split: this rank alone."""
    return current().group_of(Axis.TP)


def get_rdp_process_group() -> dist.ProcessGroup:
    """Return the process group of the ranks with the same parameters as this rank."""
    return current().group_of(Axis.RDP)


def get_dp_process_group() -> dist.ProcessGroup:
    """Return the process group of the ranks with the same stage as this rank."""
    return current().group_of(Axis.DP)


def get_mp_process_group() -> dist.ProcessGroup:
    """Return the process group of the ranks of this rank's replica."""
    return current().group_of(Axis.MP)


def get_pp_group() -> list[int]:
    """Return the world ranks of this rank's pipeline, in the order of the pipeline."""
    return list(current().members(Axis.PP))


def get_tp_group() -> list[int]:
    """Return the world ranks over which this rank's tensors are split: this rank alone."""
    return list(current().members(Axis.TP))


def get_rdp_group() -> list[int]:
    """Return the world ranks with the same parameters as this rank."""
    return list(current().members(Axis.RDP))


def get_dp_group() -> list[int]:
    """Return the world ranks with the same stage as this rank."""
    return list(current().members(Axis.DP))


def get_mp_group() -> list[int]:
    """Return the world ranks of this rank's replica."""
    return list(current().members(Axis.MP))
