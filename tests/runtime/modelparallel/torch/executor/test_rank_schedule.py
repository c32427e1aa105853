# SPDX-License-Identifier: Apache-2.0
"""How many messages may be on their way: enough that nobody waits for ever, and no more than that
by much."""

import pytest

from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule import make_schedule
from smdist.modelparallel.core.schedule.catalog import SCHEDULES
from smdist.modelparallel.torch.executor.rank_schedule import RankSchedule


def edge(source, target):
    return Edge(
        value=f"{source}-{target}", source=source, target=target, num_bytes=4, has_gradient=True
    )


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("name", sorted(SCHEDULES.keys() - {"looped_bfs"}))
def test_windows_do_not_grow_with_microbatches(name, backward):
    """Where a skip goes past stages as well; breadth first is to send all before any is read."""
    windows = []
    for microbatches in (8, 32):
        virtual = max(SCHEDULES[name].least_virtual_stages, 1)
        schedule = make_schedule(
            name, num_ranks=4, num_microbatches=microbatches, virtual_stages=virtual
        )
        last = schedule.num_stages - 1
        edges = [edge(stage, stage + 1) for stage in range(last)] + [edge(0, last), edge(1, last)]
        found = RankSchedule.of(schedule, 1, edges, backward=backward)
        windows.append(found.window)

        assert len(found.actions) == len(schedule.orders[1]) or not backward
    few, many = windows

    assert many <= max(few, 12)


def test_the_last_backward_action_of_each_stage_is_known():
    schedule = make_schedule("zero_bubble_v", num_ranks=2, num_microbatches=4, virtual_stages=2)
    found = RankSchedule.of(schedule, 0, [edge(0, 1), edge(1, 2), edge(2, 3)], backward=True)

    assert {"0W3", "3W3"} == {str(action) for action in found.last}
