# SPDX-License-Identifier: Apache-2.0
"""`opened` edited by hand, and plans for quite another model are refused by name."""

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


def fields(run, *args):
    return [(fault.about, fault.kind) for fault in faults(run, *args)]


def graph(*opened):
    return MODEL.graph(1, frozenset(opened))


def test_unit_that_opened_goes_into_is_replaced_by_its_parts(plan):
    edited = replace(plan, opened=("h.0",))
    (fault,) = faults(edited.check, graph("h.0"))

    assert (("stages", 0, "h.0"), "divided") == (fault.about, fault.kind)
    assert (
        "stage 0 has the module 'h.0': opened lists it, so it is divided into h.0.attn, h.0.mlp. "
        "Replace it by these modules, or remove it from opened."
    ) == str(fault)


def test_what_is_opened_inside_of_a_unit_opens_that_unit(plan):
    edited = replace(plan, opened=("h.0.attn.query",))
    (fault,) = faults(edited.check, graph("h.0"))

    assert (("stages", 0, "h.0"), "divided") == (fault.about, fault.kind)


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
        (("stages", 0, "h.0.attn"), "undivided"),
        (("stages", 0, "h.0.mlp"), "undivided"),
    ] == fields(replace(opened, opened=(), fingerprint=whole).check, graph())


def test_slip_in_opened_is_told_before_anything_is_captured(plan):
    edited = replace(plan, opened=("h.O",))
    MODEL.captured.clear()

    (fault,) = faults(edited.check, graph())
    (again,) = faults(renewed, edited, problem(MODEL, ranks=2))

    assert 2 * [(("opened",), "unknown")] == [(each.about, each.kind) for each in (fault, again)]
    assert [] == MODEL.captured


def test_modules_in_and_around_units_may_be_opened(plan):
    for name in ("h", "h.0", "h.0.attn"):
        assert plan.stages == replace(plan, opened=(name,)).stages
        assert 2 == replace(plan, opened=(name,)).check(graph()).num_stages


def test_plan_for_another_model_is_one_error(plan):
    other = replace(Model((1e-3,) * 2).graph(1), model="Other")

    assert [(("model",), "other_model")] == fields(plan.check, other)


def test_other_name_alone_is_no_other_model(plan):
    """A class may be renamed or wrapped."""
    assert 2 == plan.check(replace(graph(), model="Renamed")).num_stages
