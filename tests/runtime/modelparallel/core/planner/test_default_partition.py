# SPDX-License-Identifier: Apache-2.0
"""`default_partition`: needed where units have no mark alone, and blamed for its own faults."""

import pytest
from plan_problems import Model, problem

from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.core.planner import find_plan

MODEL = Model((1e-3,) * 2)  # wte, h.0, h.1, lm_head
ALL = {"wte": 0, "h": 0, "lm_head": 1}


def by_hand(marks, ranks=2, **options):
    return problem(MODEL, ranks=ranks, auto_partition=False, marks=marks, **options)


def test_none_is_needed_where_every_unit_is_marked():
    """Also by a mark of a module around it."""
    assert (("wte", "h.0", "h.1"), ("lm_head",)) == find_plan(by_hand(ALL)).stages


def test_units_without_a_mark_are_refused():
    with pytest.raises(PlanError) as error:
        find_plan(by_hand({"h": 0, "lm_head": 1}))

    assert (("auto_partition",), "missing") == (error.value.about, error.value.kind)


@pytest.mark.parametrize(
    ("stage", "options", "kind"),
    [
        (5, {}, "option"),
        (2, {}, "option"),
        (3, {"ranks": 4}, "empty_stage"),
        (2, {"ranks": 4, "pipeline_parallel_degree": 2}, "option"),
        ("0", {}, "option"),
        (-1, {}, "option"),
        (True, {}, "option"),
    ],
)
def test_a_default_out_of_range_is_refused(stage, options, kind):
    """The error is about the default, not about the marks."""
    with pytest.raises(PlanError) as error:
        by_hand(ALL, default_partition=stage, **options)

    assert (("default_partition",), kind) == (error.value.about, error.value.kind)


def test_the_default_may_be_the_last_stage():
    marks = {"wte": 0, "h": 0}

    assert 2 == by_hand(ALL, default_partition=2, ranks=4).default_partition
    assert ("lm_head",) == find_plan(by_hand(marks, default_partition=1)).stages[1]


@pytest.mark.parametrize("schedule", [[], {}, None, 1])
def test_schedule_that_is_no_name_is_refused(schedule):
    with pytest.raises(PlanError) as error:
        problem(schedule=schedule)

    assert ("schedule",) == error.value.about


@pytest.mark.parametrize("name", ["device_memory", "batch_size", "microbatches"])
def test_enormous_counts_are_refused(name):
    """The check comes before the search for divisors, which would not end."""
    model = Model(batch=10**400) if name == "batch_size" else Model()
    options = {} if name == "batch_size" else {name: 10**400}
    with pytest.raises(PlanError) as error:
        problem(model, **options)

    assert ((name,), "too_large") == (error.value.about, error.value.kind)
