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


def test_units_without_a_mark_are_named():
    with pytest.raises(PlanError) as error:
        find_plan(by_hand({"h": 0, "lm_head": 1}))

    assert (
        "auto_partition is False without a default_partition: units without a mark need a stage: "
        "wte. Mark them, or pass default_partition: a stage from 0 to 1." == str(error.value)
    )


@pytest.mark.parametrize(
    ("stage", "options", "text"),
    [
        (5, {}, "default_partition is 5: there are 2 stages, from 0. Pass 0 to 1."),
        (2, {}, "default_partition is 2: there are 2 stages, from 0. Pass 0 to 1."),
        (3, {"ranks": 4}, "stage 2 would have no units: no module is marked for it. Pass 0 to 2."),
        (2, {"ranks": 4, "pipeline_parallel_degree": 2}, "there are 2 stages, from 0"),
        ("0", {}, "default_partition is '0': it is the number of a stage, from 0"),
        (-1, {}, "default_partition is -1: it is the number of a stage, from 0"),
        (True, {}, "default_partition is True: it is the number of a stage, from 0"),
    ],
)
def test_a_default_out_of_range_is_told_as_such(stage, options, text):
    """Marks have nothing to do with it."""
    with pytest.raises(PlanError) as error:
        by_hand(ALL, default_partition=stage, **options)

    assert text in str(error.value)
    assert "marks are for" not in str(error.value)


def test_the_default_may_be_the_last_stage():
    marks = {"wte": 0, "h": 0}

    assert ("lm_head",) == find_plan(by_hand(marks, default_partition=1)).stages[1]


@pytest.mark.parametrize("schedule", [[], {}, None, 1])
def test_schedule_that_is_no_name_is_told(schedule):
    with pytest.raises(PlanError, match=r"schedule is .*: there is none of this name"):
        problem(schedule=schedule)


@pytest.mark.parametrize("name", ["device_memory", "batch_size", "microbatches"])
def test_counts_without_measure_are_told(name):
    """Before anybody looks for their divisors."""
    model = Model(batch=10**400) if name == "batch_size" else Model()
    options = {} if name == "batch_size" else {name: 10**400}
    with pytest.raises(PlanError, match=f"{name} is an integer of more than 40 digits"):
        problem(model, **options)
