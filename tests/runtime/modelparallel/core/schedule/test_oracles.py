# SPDX-License-Identifier: Apache-2.0
"""Our schedules are torch's, action for action, wherever torch has them."""

from types import SimpleNamespace

import pytest
import torch.distributed.pipelining.schedules as theirs
from schedule_grid import NAMED, grid, made

from smdist.modelparallel.core.schedule import make_schedule

ORACLES = {
    "looped_bfs": theirs.ScheduleLoopedBFS,
    "interleaved_1f1b": theirs.ScheduleInterleaved1F1B,
    "zero_bubble": theirs.ScheduleInterleavedZeroBubble,
    "zero_bubble_v": theirs.ScheduleZBVZeroBubble,
    "dualpipe_v": theirs.ScheduleDualPipeV,
}
ROUNDS = {"interleaved_1f1b", "zero_bubble"}


@pytest.mark.parametrize(("name", "virtual_stages"), [pair for pair in NAMED if pair[0] in ORACLES])
def test_lists_are_torchs(name, virtual_stages):
    """Ours equal torch's compute actions, on the whole grid; where rounds come out uneven torch
    has no list."""
    compared = 0
    for shape in grid(name, virtual_stages):
        if name in ROUNDS and shape.num_microbatches % _num_rounds(shape):
            continue
        theirs_by_rank = [_their_order(ORACLES[name], shape, r) for r in range(shape.num_ranks)]
        ours = [[str(action) for action in order] for order in made(name, shape).orders]
        compared += 1

        assert theirs_by_rank == ours, shape

    assert compared > 20


@pytest.mark.parametrize("ranks", [2, 4])
def test_torchs_1f1b_list_is_wrong_on_its_last_rank(ranks):
    """torch 2.13 lists F1 to Fm there and never F0 (its runtime does not use the list), so it is no
    oracle for ours. If this fails, torch has mended it: make it one."""
    microbatches = 2 * ranks
    schedule = SimpleNamespace(_num_stages=ranks, _n_microbatches=microbatches)
    lists = theirs.Schedule1F1B._get_pipeline_order(schedule)
    computes = {
        rank: [str(action) for action in order if action and action.is_compute_op]
        for rank, order in lists.items()
    }
    ours = make_schedule("1f1b", num_ranks=ranks, num_microbatches=microbatches).orders
    forwards = [action for action in computes[ranks - 1] if "F" in action]

    for rank in range(ranks - 1):
        assert computes[rank] == [str(action) for action in ours[rank]]
    assert [f"{ranks - 1}F{n}" for n in range(1, microbatches + 1)] == forwards


def _num_rounds(shape):
    return max(1, shape.num_microbatches // shape.num_ranks)


def _their_order(schedule_class, shape, rank):
    """What torch's class lists for a rank, without the stages that making one would need."""
    schedule = object.__new__(schedule_class)
    schedule.pp_group_size = shape.num_ranks
    schedule._n_microbatches = shape.num_microbatches
    schedule._stages = [None] * shape.virtual_stages
    schedule.n_local_stages = shape.virtual_stages
    schedule.num_stages = schedule._num_stages = shape.num_stages
    schedule.microbatches_per_round = shape.num_microbatches // _num_rounds(shape)
    actions = filter(None, schedule._calculate_single_rank_operations(rank))
    parts = (part for action in actions for part in action.sub_actions or (action,))
    return [
        f"{part.stage_index}{part.computation_type.value}{part.microbatch_index}" for part in parts
    ]
