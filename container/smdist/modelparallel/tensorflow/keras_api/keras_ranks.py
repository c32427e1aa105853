# SPDX-License-Identifier: Apache-2.0
"""Ranks, sizes and groups under SMP's function names, each with the prefix of its group.

pp   the ranks of a pipeline                    rdp  the ranks with the same stages
mp   the ranks of a replica, equal to pp        dp   the ranks of the same stage, equal to rdp
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from smdist.dataparallel.tensorflow import basics
from smdist.dataparallel.tensorflow.broadcast_objects import allgather_object
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.tensorflow.keras_session import current_session


class KerasGroup(Enum):
    """Groups that contain this rank, for `smp.allgather` and `smp.barrier`, in SMP's names."""

    WORLD = Axis.WORLD
    MP_GROUP = Axis.MP
    DP_GROUP = Axis.DP
    PP_GROUP = Axis.PP
    TP_GROUP = Axis.TP
    RDP_GROUP = Axis.RDP


WORLD: Final = KerasGroup.WORLD
MP_GROUP: Final = KerasGroup.MP_GROUP
DP_GROUP: Final = KerasGroup.DP_GROUP
PP_GROUP: Final = KerasGroup.PP_GROUP
TP_GROUP: Final = KerasGroup.TP_GROUP
RDP_GROUP: Final = KerasGroup.RDP_GROUP


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
    return _members(PP_GROUP)


def get_mp_group() -> list[int]:
    """Return the world ranks of this rank's replica."""
    return _members(MP_GROUP)


def get_dp_group() -> list[int]:
    """Return the world ranks with the same stage as this rank."""
    return _members(DP_GROUP)


def get_rdp_group() -> list[int]:
    """Return the world ranks with the same stages as this rank."""
    return _members(RDP_GROUP)


def allgather(obj: Any, group: KerasGroup = WORLD) -> list[Any]:
    """Return the objects of all ranks of a group, in the order of their ranks.

    All ranks of the world must call this, also with a smaller group.

    Args:
        obj: Object that pickle supports.
        group: Group that contains this rank.
    """
    current_session()
    every = allgather_object(obj)
    return [every[each] for each in _members(group)]


def barrier(group: KerasGroup = WORLD) -> None:
    """Wait until all ranks have come; all ranks of the world must call this.

    Args:
        group: Group that contains this rank; a wait for the world is a wait for the group, too.
    """
    _members(group)
    allgather_object(None)


def _members(group: KerasGroup) -> list[int]:
    session = current_session()
    if group is WORLD:
        return list(range(session.size))
    return list(session.layout.members(group.value, session.rank))
