# SPDX-License-Identifier: Apache-2.0
"""`opened` edited by hand, and plans for quite another model: what to write instead is said."""

from dataclasses import replace

import pytest
from plan_problems import Model, problem

from sagemaker_dist.errors import parts_of
from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.core.planner import find_plan
from smdist.modelparallel.core.planner.resimulate import renewed

MODEL = Model((1e-3,) * 4, opens=[0, 1])


@pytest.fixture(scope="module")
def plan():
    options = {"pipeline_parallel_degree": 2, "schedule": "1f1b", "microbatches": 8}
    return find_plan(problem(MODEL, ranks=2, **options))


def faults(run, *args):
    with pytest.raises(PlanError) as error:
        run(*args)
    return parts_of(error.value)


def texts(run, *args):
    return list(map(str, faults(run, *args)))


def graph(*opened):
    return MODEL.graph(1, frozenset(opened))


def test_unit_that_opened_goes_into_is_replaced_by_its_parts(plan):
    edited = replace(plan, opened=("h.0",))

    assert [
        "stage 0 has the module 'h.0': opened lists it, so it is divided into h.0.attn, h.0.mlp. "
        "Replace it by these modules, or remove it from opened."
    ] == texts(edited.check, graph("h.0"))


def test_what_is_opened_inside_of_a_unit_opens_that_unit(plan):
    edited = replace(plan, opened=("h.0.attn.query",))
    (fault,) = faults(edited.check, graph("h.0"))

    assert ("stages", 0, "h.0") == fault.about


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
        "stage 0 has the module 'h.0.attn': it is inside 'h.0', which is not divided, because "
        "opened does not list it. Write 'h.0' instead, or add it to opened.",
        "stage 0 has the module 'h.0.mlp': it is inside 'h.0', which is not divided, because "
        "opened does not list it. Write 'h.0' instead, or add it to opened.",
    ] == texts(replace(opened, opened=(), fingerprint=whole).check, graph())


def test_slip_in_opened_is_told_before_anything_is_captured(plan):
    """By name, with the one that is meant."""
    edited = replace(plan, opened=("h.O",))
    MODEL.captured.clear()

    (fault,) = faults(edited.check, graph())
    (again,) = faults(renewed, edited, problem(MODEL, ranks=2))

    assert [("opened",), ("opened",)] == [fault.about, again.about]
    assert "opened has 'h.O'" == fault.what == again.what
    assert fault.hint.startswith("Did you mean 'h.")
    assert [] == MODEL.captured


def test_modules_in_and_around_units_may_be_opened(plan):
    for name in ("h", "h.0", "h.0.attn"):
        assert plan.stages == replace(plan, opened=(name,)).stages
        assert 2 == replace(plan, opened=(name,)).check(graph()).num_stages


def test_plan_for_another_model_is_one_short_error(plan):
    other = replace(Model((1e-3,) * 2).graph(1), model="Other")

    assert [
        "this plan is for GPT, and the model is Other: the model lacks 'h.2', 'h.3'. Pass the plan "
        "of this model, or make a new plan for it."
    ] == texts(plan.check, other)


def test_other_name_alone_is_no_other_model(plan):
    """A class may be renamed or wrapped."""
    assert 2 == plan.check(replace(graph(), model="Renamed")).num_stages
