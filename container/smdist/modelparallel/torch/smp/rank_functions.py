# SPDX-License-Identifier: Apache-2.0
"""Ranks, sizes and groups of the running session, and its process groups, under SMP's names."""

from __future__ import annotations

from typing import Final

import torch.distributed as dist

from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.core.session_ranks import RankFunctions
from smdist.modelparallel.torch.session import current

_of_session: Final = RankFunctions(current)

rank = _of_session.rank
size = _of_session.size
local_rank = _of_session.local_rank
local_size = _of_session.local_size
pp_rank = _of_session.pp_rank
pp_size = _of_session.pp_size
tp_rank = _of_session.tp_rank
tp_size = _of_session.tp_size
rdp_rank = _of_session.rdp_rank
rdp_size = _of_session.rdp_size
dp_rank = _of_session.dp_rank
dp_size = _of_session.dp_size
mp_rank = _of_session.mp_rank
mp_size = _of_session.mp_size
get_pp_group = _of_session.get_pp_group
get_tp_group = _of_session.get_tp_group
get_rdp_group = _of_session.get_rdp_group
get_dp_group = _of_session.get_dp_group
get_mp_group = _of_session.get_mp_group


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
