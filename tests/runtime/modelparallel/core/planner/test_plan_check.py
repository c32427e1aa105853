# SPDX-License-Identifier: Apache-2.0
"""An edited plan that does not fit its model is refused, with all faults at once."""

from dataclasses import replace

import pytest
from plan_problems import Model, problem

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
    return [str(each) for each in getattr(error.value, "faults", (error.value,))]


def test_plan_as_made_passes(plan):
    assert 2 == plan.check(GRAPH).num_stages


def test_units_that_are_wrong_are_named_with_their_stages(plan):
    """Unknown, twice and missing in one error."""
    stages = (("wte", "h.0", "h.O"), ("h.0", "h.2", "h.3", "lm_head"))

    assert [
        "stage 0 has the unit 'h.O': GPT has no such unit. Did you mean 'h.1'?",
        "the unit 'h.0' is on stage 0 and stage 1: a unit runs once. Keep one of them.",
        "the unit 'h.1' is on no stage: every unit runs somewhere. Add it to the list of a stage.",
    ] == faults(replace(plan, stages=stages))


def test_empty_stage_and_wrong_number_of_stages_are_told(plan):
    stages = (("wte", "h.0", "h.1", "h.2"), (), ("h.3", "lm_head"))

    assert [
        "the plan has 3 stages: pipeline_parallel_degree is 2 and virtual_stages is 1, which "
        "takes 2. Add or remove a list of units, or change one of the two.",
        "stage 1 has no units: every stage computes something. Move a unit there, or plan with "
        "fewer stages.",
    ] == faults(replace(plan, stages=stages))


def test_value_that_would_go_back_is_named(plan):
    """A unit on an earlier stage than what it reads."""
    stages = (("wte", "h.0", "h.2"), ("h.1", "h.3", "lm_head"))
    (fault,) = faults(replace(plan, stages=stages))

    assert "h.1" in fault
    assert "h.2" in fault


def test_schedule_that_does_not_exist_is_told(plan):
    (fault,) = faults(replace(plan, schedule="1f1bb"))

    assert "Did you mean '1f1b'?" in fault


def test_other_model_is_refused_with_the_differences(plan):
    """Parameters of another shape, units that came or went."""
    wide = replace(MODEL.graph(1), model="Wide")
    other = Model((1e-3,) * 5, elements=7).graph(1)

    assert [] == [*plan.fingerprint.differences(wide)]
    assert (
        "the unit 'h.4' is on no stage: GPT had none of that name when this plan was made. "
        in (faults(plan, other)[0])
    )
    assert "'wte' has 7 elements of parameters, and had 1,048,576; " in faults(plan, other)[1]


def test_unit_that_the_model_lost_is_told(plan):
    small = Model((1e-3,) * 3).graph(1)
    (fault,) = faults(plan, small)

    assert "stage 1 has the unit 'h.3': GPT had it when this plan was made" in fault


def test_other_shapes_of_inputs_are_no_other_model(plan):
    """A plan for one sequence length runs with another."""
    longer = MODEL.graph(4)

    assert plan.check(longer)
    assert plan.fingerprint.shapes != type(plan.fingerprint).of(longer).shapes
