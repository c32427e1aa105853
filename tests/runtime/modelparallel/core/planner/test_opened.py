# SPDX-License-Identifier: Apache-2.0
"""`opened` edited by hand, and plans for quite another model: what to write instead is said."""

from dataclasses import replace

import pytest
from plan_problems import Model, problem

from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.core.planner import find_plan
from smdist.modelparallel.core.planner.resimulate import renewed

MODEL = Model((1e-3,) * 4, opens=[0, 1])


@pytest.fixture(scope="module")
def plan():
    options = {"pipeline_parallel_degree": 2, "schedule": "1f1b", "microbatches": 8}
    return find_plan(problem(MODEL, ranks=2, **options))


def told(run, *args):
    with pytest.raises(PlanError) as error:
        run(*args)
    return [str(each) for each in getattr(error.value, "faults", (error.value,))]


def graph(*opened):
    return MODEL.graph(1, frozenset(opened))


def test_unit_that_opened_goes_into_is_replaced_by_its_parts(plan):
    edited = replace(plan, opened=("h.0",))

    assert [
        "stage 0 has the unit 'h.0': `opened` goes into it: its units are h.0.attn, h.0.mlp. "
        "Replace it by them, or take it out of opened."
    ] == told(edited.check, graph("h.0"))


def test_what_is_opened_inside_of_a_unit_opens_that_unit(plan):
    edited = replace(plan, opened=("h.0.attn.query",))
    (fault,) = told(edited.check, graph("h.0"))

    assert "stage 0 has the unit 'h.0': `opened` goes into it" in fault


def test_done_as_told_it_runs(plan):
    (first, *rest), *others = plan.stages
    stages = ((first, "h.0.attn", "h.0.mlp", *rest[1:]), *others)

    assert 2 == replace(plan, opened=("h.0",), stages=stages).check(graph("h.0")).num_stages


def test_parts_of_what_is_opened_no_more_are_replaced_by_the_whole(plan):
    (first, *rest), *others = plan.stages
    stages = ((first, "h.0.attn", "h.0.mlp", *rest[1:]), *others)
    opened = replace(plan, opened=("h.0",), stages=stages)
    whole = type(plan.fingerprint).of(graph("h.0"))

    assert [
        "stage 0 has the unit 'h.0.attn': it is in 'h.0', which `opened` does not go into, so "
        "that this is one unit. List 'h.0' instead, or add it to opened.",
        "stage 0 has the unit 'h.0.mlp': it is in 'h.0', which `opened` does not go into, so "
        "that this is one unit. List 'h.0' instead, or add it to opened.",
    ] == told(replace(opened, opened=(), fingerprint=whole).check, graph())


def test_slip_in_opened_is_told_before_anything_is_captured(plan):
    """By name, with the one that is meant."""
    edited = replace(plan, opened=("h.O",))
    MODEL.captured.clear()

    (fault,) = told(edited.check, graph())
    slip = "opened has 'h.O': GPT had no such unit when this plan was made, and none in it"

    assert f"{slip}. Did you mean 'h." in fault
    assert slip in told(renewed, edited, problem(MODEL, ranks=2))[0]
    assert [] == MODEL.captured


def test_modules_in_and_around_units_may_be_opened(plan):
    for name in ("h", "h.0", "h.0.attn"):
        assert plan.stages == replace(plan, opened=(name,)).stages
        assert 2 == replace(plan, opened=(name,)).check(graph()).num_stages


def test_plan_for_another_model_is_one_short_error(plan):
    other = replace(Model((1e-3,) * 2).graph(1), model="Other")

    assert [
        "this plan is for GPT, the model is Other: it has no 'h.2', 'h.3'. Pass its own plan, or "
        "plan this model anew."
    ] == told(plan.check, other)


def test_other_name_alone_is_no_other_model(plan):
    """A class may be renamed or wrapped."""
    assert 2 == plan.check(replace(graph(), model="Renamed")).num_stages
