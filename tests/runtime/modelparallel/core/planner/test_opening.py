# SPDX-License-Identifier: Apache-2.0
"""Units are opened for every pipeline that they would make the fastest, not for the first best."""

from time import process_time

import pytest
from plan_problems import MIB, Model, problem

from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.planner import find_plan

LINK = Link(latency_seconds=1e-5, bytes_per_second=4e9)


def test_pipeline_that_wins_only_with_finer_units_is_found():
    """One block cannot be split, so one rank a pipeline is best until the block is opened."""

    def model():
        return Model((4e-3,), batch=16, head=0.0, opens=(0,), elements=400 * MIB)

    free = find_plan(problem(model(), ranks=2, inside=LINK))
    asked = find_plan(problem(model(), ranks=2, inside=LINK, pipeline_parallel_degree=2))

    assert (2, ("h.0",)) == (free.pipeline_parallel_degree, free.opened)
    assert asked.forecast.step_seconds == free.forecast.step_seconds


@pytest.mark.parametrize("fixed", [0.0, 1e-3, 3e-3])
@pytest.mark.parametrize("head", [0.0, 1e-3])
def test_number_of_microbatches_is_chosen_for_finer_units(head, fixed):
    """No number that a person could ask for is faster by more than the 2 % of a worthwhile step."""

    def speed(**options):
        seconds = (8e-3, 1e-3, 1e-3)
        model = Model(seconds, batch=12, head=head, opens=(0,), fixed_seconds=fixed, elements=1000)
        asked = problem(model, ranks=2, pipeline_parallel_degree=2, inside=LINK, **options)
        return find_plan(asked).forecast.samples_per_second

    best = max(speed(microbatches=count) for count in (1, 2, 3, 4, 6, 12))
    assert best <= speed() * 1.02


def test_nothing_is_captured_twice():
    """A capture takes a second or more: openings and what comes after share them."""
    model = Model((8e-3, 1e-3, 1e-3), batch=12, opens=(0,), elements=1000)
    plan = find_plan(problem(model, ranks=2, inside=LINK, pipeline_parallel_degree=2))

    assert ("h.0",) == plan.opened
    assert len(set(model.captured)) == len(model.captured)


@pytest.mark.slow
@pytest.mark.long
def test_thousand_ranks_with_units_that_open_are_planned_in_seconds():
    """Every one of a hundred layers may be opened, and several lengths of pipeline are tried."""
    model = Model((1e-2,) * 96, batch=64, elements=400 * MIB, saved=100 * MIB, opens=range(96))
    begin = process_time()
    plan = find_plan(problem(model, hosts=128, ranks=8, device_memory=141 << 30))

    assert 20 > process_time() - begin
    assert 1024 == plan.world_size


@pytest.mark.parametrize("options", [{"virtual_stages": 2}, {"active_microbatches": 2}])
def test_option_of_a_pipeline_brings_a_pipeline(options):
    """The model fits on a rank, where both would mean nothing; on one rank there is no other."""
    plan = find_plan(problem(**options))
    alone = find_plan(problem(ranks=1, **options))

    assert 2 <= plan.pipeline_parallel_degree
    assert 1 == alone.pipeline_parallel_degree
