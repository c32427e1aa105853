# SPDX-License-Identifier: Apache-2.0
"""What ranks hold in a step is what the schedule says, to the byte but for little.

`benchmarks/pipeline_memory/run` has all schedules on four ranks.
"""

import pytest
from blocks import Shape
from holding import measure

SHAPE = Shape(num_blocks=8, width=32, rows=16)


@pytest.mark.parametrize(("schedule", "stages"), [("1f1b", 1), ("interleaved_1f1b", 2)])
def test_ranks_hold_what_theory_says(world, schedule, stages):
    for found, expected in world.run(measure, schedule, stages, 4, SHAPE, size=2, deadline=120):
        assert found.saved == pytest.approx(expected.saved, rel=0.05)
        assert found.received == pytest.approx(expected.received, rel=0.05)
        assert found.parameters == pytest.approx(expected.parameters, rel=0.05)


def test_more_microbatches_hold_no_more(world):
    """Four times as many go through; as many are under way."""
    few, many = (
        [found for found, _ in world.run(measure, "1f1b", 1, count, SHAPE, size=2, deadline=120)]
        for count in (4, 16)
    )

    assert [each.received for each in few] == [each.received for each in many]
    assert [each.saved for each in few] == [each.saved for each in many]
