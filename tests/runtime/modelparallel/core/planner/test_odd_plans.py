# SPDX-License-Identifier: Apache-2.0
"""Plan files that no editor would write: each is one error, whatever stands in them."""

import json
from dataclasses import replace

import pytest
from plan_problems import Model, problem

from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.plan.plan_check import divisors
from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.core.planner import find_plan
from smdist.modelparallel.core.planner.resimulate import renewed

MODEL = Model(tied=True)
HUGE = 10**400


@pytest.fixture(scope="module")
def plan():
    return find_plan(problem(MODEL, ranks=2, pipeline_parallel_degree=2, schedule="1f1b"))


def changed(plan, *path, to):
    document = json.loads(json.dumps(plan.document()))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return document


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"a":' * 100_000, "too_deep"),
        ("[" * 100_000, "too_deep"),
        ('{"version": ' + "9" * 5000 + "}", "too_large"),
        ("9" * 5000, "too_large"),
    ],
)
def test_text_that_cannot_be_a_plan_is_refused(tmp_path, text, kind):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanError) as error:
        Plan.load(path)

    assert (("path",), kind) == (error.value.about, error.value.kind)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        (("forecast", "step_seconds"), HUGE),
        (("forecast", "step_seconds"), float("inf")),
        (("forecast", "step_seconds"), float("nan")),
        (("forecast", "stages", 0, "num_parameters"), HUGE),
        (("forecast", "memory", 0, "state_bytes"), HUGE),
        (("pipeline_parallel_degree",), HUGE),
        (("pipeline_parallel_degree",), 10**12),
        (("pipeline_parallel_degree",), 10**6),
        (("virtual_stages",), 10**6),
        (("batch_size",), 10**12),
        (("version",), True),
    ],
)
def test_numbers_without_measure_are_told(plan, path, number):
    """Before anything of that size is made."""
    with pytest.raises(PlanError) as error:
        Plan.from_document(changed(plan, *path, to=number))

    assert (path[-1],) == error.value.about[-1:]
    assert len(str(error.value)) < 400


def test_schedule_of_too_many_passes_is_not_made(plan):
    with pytest.raises(PlanError) as error:
        replace(plan, batch_size=10**9, num_microbatches=10**9)

    assert ("num_microbatches",) == error.value.about


@pytest.mark.parametrize("name", ["stages", "memory"])
def test_forecast_of_other_stages_is_told(plan, name):
    with pytest.raises(PlanError) as error:
        Plan.from_document(changed(plan, "forecast", name, to=[]))

    assert ("forecast", name) == error.value.about


def test_forecast_of_what_the_plan_was_is_not_held_against_it(plan):
    """Somebody who removes a stage leaves the forecast as it was: it is stale."""
    whole = [unit for units in plan.stages for unit in units]
    document = {**plan.document(), "stages": [whole], "pipeline_parallel_degree": 1}

    assert "was edited after it was made" in Plan.from_document(document).explain()


def test_edited_ties_are_not_told_as_true(plan):
    """Also a stage that there is not."""
    for stages in ([0], [0, HUGE % 10**17], [1, 2, 3]):
        false = Plan.from_document(changed(plan, "ties", 0, "stages", to=stages))

        assert false.is_stale
        assert "Tied parameters" not in false.explain()
    assert "Tied parameters" in plan.explain()


def test_ties_without_forecast_are_of_the_stages(plan):
    with pytest.raises(PlanError) as error:
        Plan.from_document({**changed(plan, "ties", 0, "stages", to=[0, 2]), "forecast": None})

    assert ("ties",) == error.value.about


def test_forecast_renews_ties(plan):
    """What somebody wrote there is replaced by what is true, and holds again."""
    false = Plan.from_document(changed(plan, "ties", 0, "stages", to=[0]))
    again = renewed(false, problem(MODEL, ranks=2))

    assert plan.ties == again.ties
    assert not again.is_stale


def test_divisors_of_a_large_number_are_found_at_once():
    assert (1, 2, 3, 4, 6, 12) == divisors(12)
    assert (1, 7, 49) == divisors(49)
    assert (1,) == divisors(1)
    assert (1, 999_999_937) == divisors(999_999_937)
    assert 121 == len(divisors(10**10))


def test_errors_of_files_are_plain(plan, tmp_path):
    """Without numbers of the system, or names of temporary files."""
    with pytest.raises(PlanError) as missing:
        Plan.load(tmp_path / "nope.json")
    with pytest.raises(PlanError) as nowhere:
        plan.save(tmp_path / "nope" / "plan.json")
    with pytest.raises(PlanError) as unwritable:
        plan.save("a\0b")
    with pytest.raises(PlanError) as unreadable:
        Plan.load("a\0b")

    assert [
        (("path",), "missing_file"),
        (("path",), "missing_file"),
        (("path",), "unwritable"),
        (("path",), "unreadable"),
    ] == [
        (error.value.about, error.value.kind)
        for error in (missing, nowhere, unwritable, unreadable)
    ]
    nope = tmp_path / "nope"
    assert (
        f"{nope}/plan.json cannot be written: {nope} does not exist. Pass a path in a writable "
        "folder." == str(nowhere.value)
    )


@pytest.mark.parametrize("path", [None, 3, ["plan.json"]])
def test_what_is_no_path_is_refused(plan, path):
    for run in (plan.save, Plan.load):
        with pytest.raises(PlanError) as error:
            run(path)

        assert ("path",) == error.value.about


def test_all_ranks_that_hold_too_much_are_named_in_units_that_suit(plan):
    with pytest.raises(PlanError) as error:
        renewed(plan, problem(MODEL, ranks=2, device_memory=1_400_000))

    assert (("stages",), "memory") == (error.value.about, error.value.kind)
    assert (
        "rank 0 holds 90.0 MiB and rank 1 holds 85.0 MiB: each may use 1.34 MiB (1,400,000 bytes)."
        " Move modules to a rank that holds less, or use more microbatches."
    ) == str(error.value)
