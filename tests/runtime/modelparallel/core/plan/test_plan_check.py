# SPDX-License-Identifier: Apache-2.0
"""An edited plan that does not fit its model is refused, with all faults at once."""

from dataclasses import replace

import pytest
from plan_problems import Model, problem

from sagemaker_dist.errors import parts_of
from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.core.planner import find_plan

MODEL = Model((1e-3,) * 4)
GRAPH = MODEL.graph(1)


@pytest.fixture(scope="module")
def plan():
    options = {"pipeline_parallel_degree": 2, "schedule": "1f1b", "microbatches": 8}
    return find_plan(problem(MODEL, ranks=2, **options))


def faults(plan, graph=GRAPH):
    with pytest.raises(PlanError) as error:
        plan.check(graph)
    return parts_of(error.value)


def fields(plan, graph=GRAPH):
    return [(fault.about, fault.kind) for fault in faults(plan, graph)]


def test_plan_as_made_passes(plan):
    assert 2 == plan.check(GRAPH).num_stages


def test_units_that_are_wrong_are_named_with_their_stages(plan):
    """Unknown, twice and missing in one error."""
    stages = (("wte", "h.0", "h.O"), ("h.0", "h.2", "h.3", "lm_head"))

    assert [
        (("stages", 0, "h.O"), "unknown"),
        (("stages", "h.0"), "repeated"),
        (("stages", "h.1"), "missing"),
    ] == fields(replace(plan, stages=stages))
    assert [
        "stage 0 has the module 'h.O': GPT has no such module. Did you mean 'h.1'?",
        "the module 'h.0' is on stage 0 and stage 1: a module runs on one stage only. "
        "Remove it from all stages but one.",
        "the module 'h.1' is on no stage: each module needs a stage to run on. "
        "Add its name to the list of a stage.",
    ] == list(map(str, faults(replace(plan, stages=stages))))


def test_empty_stage_and_wrong_number_of_stages_are_told(plan):
    stages = (("wte", "h.0", "h.1", "h.2"), (), ("h.3", "lm_head"))

    assert [
        (("stages",), "conflict"),
        (("stages", 1), "empty_stage"),
    ] == fields(replace(plan, stages=stages))


def test_value_that_would_go_back_is_named(plan):
    """A unit on an earlier stage than what it reads."""
    stages = (("wte", "h.0", "h.2"), ("h.1", "h.3", "lm_head"))

    assert [(("stage_of", "h.2"), "stage_order")] == fields(replace(plan, stages=stages))


def test_schedule_that_does_not_exist_is_told(plan):
    assert [(("schedule",), "unknown")] == fields(replace(plan, schedule="1f1bb"))


def test_other_model_is_refused_with_the_differences(plan):
    """Parameters of another shape, units that came or went."""
    wide = replace(MODEL.graph(1), model="Wide")
    other = Model((1e-3,) * 5, elements=7).graph(1)

    assert [] == [*plan.fingerprint.differences(wide)]
    assert [
        (("stages", "h.4"), "added"),
        (("fingerprint",), "difference"),
    ] == fields(plan, other)


def test_unit_that_the_model_lost_is_told(plan):
    small = Model((1e-3,) * 3).graph(1)

    assert [(("stages", 1, "h.3"), "removed")] == fields(plan, small)


def test_other_shapes_of_inputs_are_no_other_model(plan):
    """A plan for one sequence length runs with another."""
    longer = MODEL.graph(4)

    assert plan.check(longer)
    assert plan.fingerprint.shapes != type(plan.fingerprint).of(longer).shapes
