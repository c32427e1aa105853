# SPDX-License-Identifier: Apache-2.0
"""Ranks, sizes and groups under SMP's function names, each with the prefix of its group.

pp   the ranks of a pipeline                    rdp  the ranks with the same stages
mp   the ranks of a replica, equal to pp        dp   the ranks of the same stage, equal to rdp
"""

from __future__ import annotations

from typing import Final

from smdist.dataparallel.tensorflow import basics
from smdist.modelparallel.core.comm_groups import CommGroup, RankType
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.tensorflow.keras_session import current_session

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
    return current_session().rank


def size() -> int:
    """Return the number of ranks in the world."""
    return current_session().size


def local_rank() -> int:
    """Return the number of this rank on its host."""
    current_session()
    return basics.local_rank()


def local_size() -> int:
    """Return the number of ranks on this host."""
    current_session()
    return basics.local_size()


def pp_rank() -> int:
    """Return the number of this rank in its pipeline, from 0."""
    return current_session().pp_rank


def pp_size() -> int:
    """Return the number of ranks in a pipeline."""
    return current_session().layout.pipeline_parallel_degree


def mp_rank() -> int:
    """Return the number of this rank in its replica of the model, from 0."""
    return pp_rank()


def mp_size() -> int:
    """Return the number of ranks in a replica of the model."""
    return pp_size()


def tp_rank() -> int:
    """Return this rank's tensor parallel rank: always 0, since layers are not split."""
    current_session()
    return 0


def tp_size() -> int:
    """Return the number of ranks over which each tensor is split: always 1."""
    current_session()
    return 1


def dp_rank() -> int:
    """Return the number of this rank among the ranks of the same stage, from 0."""
    return current_session().replica


def dp_size() -> int:
    """Return the number of ranks of the same stage, which is the number of replicas."""
    return current_session().num_replicas


def rdp_rank() -> int:
    """Return the number of this rank among the ranks with the same stages, from 0."""
    return dp_rank()


def rdp_size() -> int:
    """Return the number of replicas of each stage."""
    return dp_size()


def get_pp_group() -> list[int]:
    """Return the world ranks of this rank's pipeline, in the order of the pipeline."""
    return members(Axis.PP)


def get_mp_group() -> list[int]:
    """Return the world ranks of this rank's replica."""
    return members(Axis.MP)


def get_tp_group() -> list[int]:
    """Return the world ranks over which this rank's tensors are split: this rank alone."""
    return members(Axis.TP)


def get_dp_group() -> list[int]:
    """Return the world ranks with the same stage as this rank."""
    return members(Axis.DP)


def get_rdp_group() -> list[int]:
    """Return the world ranks with the same stages as this rank."""
    return members(Axis.RDP)


def members(axis: Axis) -> list[int]:
    """Return the world ranks of this rank's group of an axis (such as PP), in ascending order."""
    session = current_session()
    if axis is Axis.WORLD:
        return list(range(session.size))
    return list(session.layout.members(axis, session.rank))
