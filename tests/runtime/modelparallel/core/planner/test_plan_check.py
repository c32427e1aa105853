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


def texts(plan):
    return list(map(str, faults(plan)))


def test_plan_as_made_passes(plan):
    assert 2 == plan.check(GRAPH).num_stages


def test_units_that_are_wrong_are_named_with_their_stages(plan):
    """Unknown, twice and missing in one error."""
    stages = (("wte", "h.0", "h.O"), ("h.0", "h.2", "h.3", "lm_head"))

    assert [
        "stage 0 has the module 'h.O': GPT has no such module. Did you mean 'h.1'?",
        "the module 'h.0' is on stage 0 and stage 1: a module runs on one stage only. "
        "Remove it from all stages but one.",
        "the module 'h.1' is on no stage: each module needs a stage to run on. "
        "Add it to the list of a stage.",
    ] == texts(replace(plan, stages=stages))


def test_empty_stage_and_wrong_number_of_stages_are_told(plan):
    stages = (("wte", "h.0", "h.1", "h.2"), (), ("h.3", "lm_head"))

    assert [
        "the plan has 3 stages: pipeline_parallel_degree is 2 and virtual_stages is 1, which "
        "needs 2. Add or remove lists of modules in stages, or change one of these two numbers.",
        "stage 1 has no module: each stage needs at least one module. Move a module to this "
        "stage, or make a plan with fewer stages.",
    ] == texts(replace(plan, stages=stages))


def test_value_that_would_go_back_is_named(plan):
    """A unit on an earlier stage than what it reads."""
    stages = (("wte", "h.0", "h.2"), ("h.1", "h.3", "lm_head"))
    (fault,) = faults(replace(plan, stages=stages))

    assert ("stage_of", "h.2") == fault.about
    assert "'h.1'" in fault.why


def test_schedule_that_does_not_exist_is_told(plan):
    (fault,) = faults(replace(plan, schedule="1f1bb"))

    assert ("schedule",) == fault.about
    assert "Did you mean '1f1b'?" == fault.hint


def test_other_model_is_refused_with_the_differences(plan):
    """Parameters of another shape, units that came or went."""
    wide = replace(MODEL.graph(1), model="Wide")
    other = Model((1e-3,) * 5, elements=7).graph(1)

    assert [] == [*plan.fingerprint.differences(wide)]
    missing, differing = faults(plan, other)
    assert ("stages", "h.4") == missing.about
    assert ("fingerprint",) == differing.about
    assert "'wte' has 7 parameter elements, and had 1,048,576; " in differing.why


def test_unit_that_the_model_lost_is_told(plan):
    small = Model((1e-3,) * 3).graph(1)
    (fault,) = faults(plan, small)

    assert ("stages", 1, "h.3") == fault.about
    assert "GPT had this module when the plan was made, and no longer has it" == fault.why


def test_other_shapes_of_inputs_are_no_other_model(plan):
    """A plan for one sequence length runs with another."""
    longer = MODEL.graph(4)

    assert plan.check(longer)
    assert plan.fingerprint.shapes != type(plan.fingerprint).of(longer).shapes
