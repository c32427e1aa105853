# SPDX-License-Identifier: Apache-2.0
"""The planner takes the fastest candidate that fits, and asks for few captures."""

from dataclasses import replace
from time import process_time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plan_problems import MIB, Model, problem

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.core.planner import find_plan
from smdist.modelparallel.core.planner.candidates import candidates, microbatch_choices
from smdist.modelparallel.core.planner.cost_samples import Samples
from smdist.modelparallel.core.planner.evaluate import Evaluator

NO_TIME = Link()


@st.composite
def problems(draw):
    """Small ones, with and without limits of memory, latency and decisions of the user."""
    seconds = draw(st.lists(st.integers(1, 9), min_size=2, max_size=6))
    model = Model(
        [each * 1e-4 for each in seconds],
        batch=draw(st.sampled_from([2, 4, 6])),
        head=draw(st.integers(0, 9)) * 1e-4,
        tied=draw(st.booleans()),
        fixed_seconds=draw(st.sampled_from([0.0, 1e-5])),
    )
    link = Link(latency_seconds=draw(st.sampled_from([0.0, 1e-5, 1e-4])), bytes_per_second=1e8)
    return problem(
        model,
        ranks=draw(st.sampled_from([1, 2, 3, 4])),
        inside=link,
        microbatches=draw(st.sampled_from([None, model.batch])),
        pipeline_parallel_degree=draw(st.sampled_from([None, None, 1])),
        device_memory=draw(st.sampled_from([None, 40 * MIB, 80 * MIB, 1 << 30])),
    )


def exhaustive(asked, num_microbatches):
    """Every candidate of this size with the cuts that the planner looks at, simulated.

    The least seconds per sample that fit. All other cuts: test_against_brute_force.py.
    """
    samples = Samples(asked, frozenset(), microbatch_choices(asked))
    samples.exact(num_microbatches)
    evaluator, found = Evaluator(asked, samples), []
    evaluator._room = None  # what others needed decides nothing
    for candidate in candidates(asked, len(samples.smallest.graph.units)):
        if candidate.num_microbatches != num_microbatches:
            continue
        try:
            for _, cut in evaluator.splits(candidate):
                trial = evaluator.fit(candidate, cut)
                found += [trial] if trial else []
        except OptionError:
            continue
    return min((trial.seconds_per_sample for trial in found), default=None)


# The first partition does not fit, and the one that replaces it is faster.
REPLACED = problem(
    Model([1e-4, 1e-4, 2e-4, 4e-4, 2e-4, 3e-4], batch=2, head=1e-4),
    ranks=2,
    inside=Link(bytes_per_second=1e8),
    device_memory=80 * MIB,
)


@settings(max_examples=150, deadline=None)
@given(problems())
@example(REPLACED)
def test_planner_finds_what_exhaustive_search_finds(asked):
    """Of all candidates with the number of microbatches that it chose, none is faster."""
    try:
        plan = find_plan(asked)
    except PlanError:
        assert {None} == {exhaustive(asked, each) for each in microbatch_choices(asked)}
        return
    fixed = replace(asked, microbatches=plan.num_microbatches)

    best = exhaustive(fixed, plan.num_microbatches)
    assert best == pytest.approx(1 / plan.forecast.samples_per_second, rel=1e-6)


@settings(max_examples=75, deadline=None)
@given(problems())
def test_plan_never_holds_more_than_allowed(asked):
    """Receive buffers and workspace count as well; and the plan passes its own check."""
    try:
        plan = find_plan(asked)
    except PlanError:
        return
    allowed = asked.memory_limit_bytes or float("inf")

    assert max(each.total_bytes for each in plan.forecast.memory) <= allowed
    assert plan.check(asked.at(plan.num_microbatches, frozenset(plan.opened))[0])
    assert plan == find_plan(asked)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("count", [4, 8, 16])
def test_bubble_of_equal_stages_is_the_closed_form(ranks, count):
    """(p - 1) / (m + p - 1) of the time where messages take none."""
    model = Model((1e-3,) * 7, batch=16, head=1e-3)
    options = {"pipeline_parallel_degree": ranks, "schedule": "1f1b", "microbatches": count}
    plan = find_plan(problem(model, ranks=ranks, inside=NO_TIME, **options))

    assert (ranks - 1) / (count + ranks - 1) == pytest.approx(plan.forecast.bubble_fraction)
    assert 16e-3 * 3 * 8 / ranks * (1 + (ranks - 1) / count) == pytest.approx(
        plan.forecast.step_seconds
    )


def test_model_that_fits_on_a_rank_needs_no_pipeline():
    """Without a pipeline nobody waits; more pipelines have more samples a step."""
    plan = find_plan(problem(Model()))

    assert (1, 4) == (plan.pipeline_parallel_degree, plan.data_parallel_degree)
    assert 0.0 == plan.forecast.bubble_fraction


def test_model_that_is_too_large_for_a_rank_gets_the_shortest_pipeline_that_holds_it():
    """10 units of 16 MiB with their state: 80 MiB a rank hold five, less what is kept."""
    plan = find_plan(problem(Model(saved=1024), device_memory=82 * MIB))

    assert (2, 2) == (plan.pipeline_parallel_degree, plan.data_parallel_degree)


def test_slow_network_makes_pipelines_longer():
    """Summing gradients over replicas is part of a step."""
    network = Link(bytes_per_second=2e7)
    plan = find_plan(problem(Model(batch=64), hosts=4, ranks=1, across=network))

    assert 1 < plan.pipeline_parallel_degree


def test_schedule_hides_latency_with_more_microbatches_under_way():
    """Where messages take a tenth of a stage's time, 1f1b waits for each of them."""
    link = Link(latency_seconds=1e-3)
    model = Model((1e-2,) * 7, batch=16, head=1e-2)
    options = {"pipeline_parallel_degree": 4, "microbatches": 16}
    plan = find_plan(problem(model, inside=link, **options))
    plain = find_plan(problem(model, inside=link, schedule="1f1b", **options))

    assert "1f1b" != plan.schedule
    assert plan.forecast.step_seconds < plain.forecast.step_seconds


def test_equals_are_decided_by_the_least_memory():
    """Without latency, 1f1b and interleaved take the same time."""
    options = {"pipeline_parallel_degree": 2, "virtual_stages": 1, "split_overhead": 1.0}
    plan = find_plan(problem(Model(), ranks=2, inside=NO_TIME, **options))

    assert "1f1b" == plan.schedule


def test_split_backward_is_taken_where_it_is_free():
    """Zero bubbles are worth it when two halves of a backward pass cost no more than a whole."""
    options = {"pipeline_parallel_degree": 4, "virtual_stages": 1}
    free = find_plan(problem(inside=NO_TIME, split_overhead=0.0, **options))
    dear = find_plan(problem(inside=NO_TIME, split_overhead=1.0, **options))

    assert ("zero_bubble", "1f1b") == (free.schedule, dear.schedule)


def test_few_sizes_are_captured():
    """Both ends, and what was chosen between them; each once."""
    model = Model(batch=64, fixed_seconds=1e-3)
    plan = find_plan(problem(model, ranks=2, pipeline_parallel_degree=2))
    whole = [count for count, opened in model.captured if not opened]

    assert [32, 1, plan.num_microbatches] == whole
    assert len(set(model.captured)) == len(model.captured)


def test_unit_that_caps_the_gain_is_opened():
    """A block that takes more than its share is split at the modules in it."""
    model = Model((1e-3, 1e-3, 4e-3, 1e-3), head=1e-3, opens={2})
    options = {"pipeline_parallel_degree": 2, "schedule": "1f1b", "microbatches": 8}
    plan = find_plan(problem(model, ranks=2, **options))

    assert ("h.2",) == plan.opened
    assert "h.2.attn" == plan.stages[0][-1]
    assert plan.check(model.graph(1, frozenset(plan.opened)))


def test_unit_that_cannot_be_opened_stays():
    """A note says what caps the gain."""
    model = Model((1e-3, 1e-3, 9e-3, 1e-3), head=1e-3)
    options = {"pipeline_parallel_degree": 4, "schedule": "1f1b", "microbatches": 8}
    plan = find_plan(problem(model, **options))

    assert () == plan.opened
    assert ("bottleneck", "h.2") == (plan.notes[0].kind, plan.notes[0].about)


def test_units_are_opened_where_nothing_fits_otherwise():
    """Six stages of a model with four units."""
    model = Model((1e-3, 1e-3), opens={0, 1})
    plan = find_plan(problem(model, ranks=6, pipeline_parallel_degree=6, schedule="1f1b"))

    assert ("h.0", "h.1") == plan.opened
    assert 6 == len(plan.stages)


def test_tied_parameters_are_on_the_plan():
    """An embedding and a head at both ends of the pipeline."""
    options = {"pipeline_parallel_degree": 2, "schedule": "1f1b"}
    plan = find_plan(problem(Model(tied=True), ranks=2, **options))

    assert [("wte.weight", (0, 1))] == [(tie.parameter, tie.stages) for tie in plan.ties]


def test_stages_by_hand_are_kept():
    """Marks of modules, and the default for what nobody marked."""
    options = {"auto_partition": False, "marks": {"h.6": 1, "h.7": 1, "lm_head": 1}}
    model = Model()
    plan = find_plan(problem(model, ranks=2, default_partition=0, **options))

    assert ("h.6", "h.7", "lm_head") == plan.stages[1]
    assert 2 == plan.pipeline_parallel_degree


@pytest.mark.slow
def test_thousand_ranks_are_planned_in_seconds():
    """A hundred layers on 128 hosts of 8, in processor time of one core."""
    model = Model((1e-2,) * 96, batch=64, elements=400 * MIB, saved=100 * MIB)
    begin = process_time()
    plan = find_plan(problem(model, hosts=128, ranks=8, device_memory=141 << 30))

    assert 10 > process_time() - begin
    assert 1024 == plan.world_size
    assert 8 <= plan.pipeline_parallel_degree


def test_memory_can_be_balanced_instead_of_time():
    """SageMaker's options reach the partitioner: a slow block is as large as a fast one."""
    model = Model((4e-3, 1e-3, 1e-3, 1e-3), head=0.0)
    options = {"pipeline_parallel_degree": 2, "schedule": "1f1b"}
    by_time = find_plan(problem(model, ranks=2, **options))
    by_memory = find_plan(problem(model, ranks=2, memory_weight=1.0, **options))

    assert (2, 3) == (len(by_time.stages[0]), len(by_memory.stages[0]))
