# SPDX-License-Identifier: Apache-2.0
"""Ranks, sizes and groups of the running session, under SMP's names."""

from __future__ import annotations

from typing import Final

from smdist.modelparallel.core.session_ranks import RankFunctions
from smdist.modelparallel.tensorflow.keras_session import current_session

_of_session: Final = RankFunctions(current_session)

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
members = _of_session.members
