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
    ("text", "part"),
    [
        ('{"a":' * 100_000, "its brackets stand within each other too deep"),
        ("[" * 100_000, "its brackets stand within each other too deep"),
        ('{"version": ' + "9" * 5000 + "}", "a number in it has thousands of digits"),
        ("9" * 5000, "a number in it has thousands of digits"),
    ],
)
def test_text_that_no_plan_is_made_of_is_told(tmp_path, text, part):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanError) as error:
        Plan.load(path)

    assert f"{path} is no plan: {part}" in str(error.value)


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

    assert path[-1] in str(error.value)
    assert len(str(error.value)) < 400


def test_schedule_of_too_many_passes_is_not_made(plan):
    with pytest.raises(PlanError, match="passes of a microbatch"):
        replace(plan, batch_size=10**9, num_microbatches=10**9)


@pytest.mark.parametrize("name", ["stages", "memory"])
def test_forecast_of_other_stages_is_told(plan, name):
    with pytest.raises(PlanError, match=f"{name} of the forecast has 0 entries"):
        Plan.from_document(changed(plan, "forecast", name, to=[]))


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
    with pytest.raises(PlanError, match=r"the tie of 'wte.weight' is on stages \[0, 2\]"):
        Plan.from_document({**changed(plan, "ties", 0, "stages", to=[0, 2]), "forecast": None})


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


def test_files_are_told_in_plain_words(plan, tmp_path):
    """Without numbers of the system, or names of temporary files."""
    with pytest.raises(PlanError) as missing:
        Plan.load(tmp_path / "nope.json")
    with pytest.raises(PlanError) as nowhere:
        plan.save(tmp_path / "nope" / "plan.json")
    with pytest.raises(PlanError, match="cannot be written"):
        plan.save("a\0b")
    with pytest.raises(PlanError, match="cannot be read"):
        Plan.load("a\0b")

    nope = tmp_path / "nope"
    assert (
        f"{nope}.json cannot be read: there is no {nope}.json. Pass the path of a plan that was "
        "saved." == str(missing.value)
    )
    assert (
        f"{nope}/plan.json cannot be written: there is no {nope}. Pass a path in a folder that is "
        "writable." == str(nowhere.value)
    )


@pytest.mark.parametrize("path", [None, 3, ["plan.json"]])
def test_what_is_no_path_is_told(plan, path):
    for run in (plan.save, Plan.load):
        with pytest.raises(PlanError, match=r"path is .* plans are files"):
            run(path)


def test_all_ranks_that_hold_too_much_are_named_in_units_that_suit(plan):
    with pytest.raises(PlanError) as error:
        renewed(plan, problem(MODEL, ranks=2, device_memory=1_400_000))

    assert str(error.value).startswith("rank 0 holds ")
    assert " MiB and rank 1 holds " in str(error.value)
    assert "each may use 1.34 MiB (1,400,000 bytes)" in str(error.value)
