# SPDX-License-Identifier: Apache-2.0
"""Plans are files for people: what was saved is loaded, what was edited wrongly is told."""

import json

import pytest
from plan_problems import Model, problem

from sagemaker_dist.errors import OptionError, parts_of
from smdist.modelparallel.core.note import Note
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.plan_errors import PlanError, PlanMemoryError
from smdist.modelparallel.core.planner import find_plan
from smdist.modelparallel.core.planner.resimulate import renewed

MODEL = Model(tied=True)


@pytest.fixture(scope="module")
def plan():
    return find_plan(problem(MODEL, ranks=2, pipeline_parallel_degree=2, schedule="1f1b"))


def edited(plan, **changes):
    return Plan.from_document({**plan.document(), **changes})


def test_saved_plan_is_loaded_as_it_was(plan, tmp_path):
    """A file holds everything: decisions, forecast, notes, what was rejected."""
    plan.save(tmp_path / "plan.json")

    assert plan == Plan.load(tmp_path / "plan.json")
    assert plan.rejected
    assert plan.forecast


def test_document_is_json(plan):
    """JSON's types alone, so that it survives a way through text."""
    assert plan == Plan.from_document(json.loads(json.dumps(plan.document())))


def test_notes_of_earlier_releases_are_kept(plan):
    """Those releases wrote a note as its sentence alone."""
    document = {**plan.document(), "notes": ["Ranks wait long", {"kind": "k", "text": "t"}]}

    assert (Note("other", "Ranks wait long"), Note("k", "t")) == Plan.from_document(document).notes


def test_a_plan_of_version_1_has_whole_layers(plan):
    """Files of earlier releases lack the keys that came with version 2."""
    document = plan.document()
    assert 2 == document["version"]
    older = {**document, "version": 1}
    for key in ("tensor_parallel_degree", "offload_activations"):
        del older[key]

    assert plan == Plan.from_document(older)


def test_a_plan_of_a_later_release_is_refused_by_its_version_alone(plan):
    """Its other keys are not judged, because a later release knows what they mean."""
    later = {**plan.document(), "version": 3, "new_key": 1}
    with pytest.raises(PlanError) as error:
        Plan.from_document(later, where="plan.json")

    (fault,) = parts_of(error.value)

    assert (("version",), "version") == (fault.about, fault.kind)


def test_file_has_one_unit_a_line(plan, tmp_path):
    """Units are moved by moving lines; what is not edited takes one line an entry."""
    plan.save(tmp_path / "plan.json")
    lines = (tmp_path / "plan.json").read_text().splitlines()

    assert '      "h.2",' in lines
    assert max(map(len, lines)) <= 1000
    assert any(line.strip().startswith('"h.3": {"type": "Block"') for line in lines)


def test_save_leaves_no_half_written_file(plan, tmp_path):
    """A save that fails leaves the old file and nothing beside it."""
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(PlanError) as error:
        plan.save(target)

    assert (("path",), "unwritable") == (error.value.about, error.value.kind)
    assert [target] == list(tmp_path.iterdir())


def test_moved_unit_is_taken(plan):
    """Moving a unit between the lists is all that it takes; the forecast then no longer holds."""
    first, second = plan.stages
    moved = edited(plan, stages=[list(first[:-1]), [first[-1], *second]])

    assert 2 == moved.check(MODEL.graph(plan.microbatch_size)).num_stages
    assert moved.is_stale
    assert not plan.is_stale
    assert "This plan was edited after it was made" in moved.explain()


def test_renewed_plan_has_forecast_and_ties_again(plan):
    """A new forecast keeps the decisions of an edited plan."""
    first, second = plan.stages
    moved = edited(plan, stages=[[first[0]], [*first[1:], *second]], ties=[])
    again = renewed(moved, problem(MODEL, ranks=2))

    assert moved.stages == again.stages
    assert plan.ties == again.ties
    assert not again.is_stale
    assert plan.forecast.step_seconds < again.forecast.step_seconds


def test_renewed_plan_names_what_no_longer_fits(plan):
    """An edited plan is held against the memory limit as well."""
    with pytest.raises(PlanMemoryError) as memory:
        renewed(plan, problem(MODEL, ranks=2, device_memory=64 << 20))
    with pytest.raises(PlanError) as ranks:
        renewed(plan, problem(MODEL, ranks=4))

    assert (("stages",), "memory") == (memory.value.about, memory.value.kind)
    assert 64 << 20 < memory.value.least_bytes
    assert (("pipeline_parallel_degree",), "difference") == (ranks.value.about, ranks.value.kind)
    enough = problem(MODEL, ranks=2, device_memory=memory.value.least_bytes)
    assert plan.stages == renewed(plan, enough).stages


@pytest.mark.parametrize(
    ("text", "about", "kind"),
    [
        ("plan", ("path",), "not_json"),
        ('{"version": 1, "version": 1}', ("version",), "repeated"),
        ("[]", (), "type"),
        ("{}", ("version",), "missing"),
        ('{"version": 7}', ("version",), "version"),
        ('{"version": 0}', ("version",), "version"),
        ('{"version": true}', ("version",), "version"),
        ('{"version": "2"}', ("version",), "version"),
        ('{"version": null}', ("version",), "version"),
    ],
)
def test_file_that_is_no_plan_is_told(tmp_path, text, about, kind):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanError) as error:
        Plan.load(path)

    assert (about, kind) == (error.value.about, error.value.kind)


def test_error_says_the_file_and_the_line_where_json_is_broken(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text('{\n "version": 1,\n "stages": [["a" "b"]]\n}')
    with pytest.raises(PlanError) as error:
        Plan.load(path)

    assert (
        f"{path} is not JSON: line 3, column 18: Expecting ',' delimiter. Look for a missing or"
        " superfluous comma or bracket there, or on the line before."
    ) == str(error.value)


def test_all_faults_of_a_document_come_at_once(plan):
    """Missing, unknown and mistyped keys, with the place of each."""
    document = {**plan.document(), "num_microbatchs": 4, "schedule": 3}
    document["stages"] = [["wte"], "h.0", ["h.1", 5]]
    del document["model"]
    with pytest.raises(PlanError) as error:
        Plan.from_document(document, where="plan.json")

    assert [
        (("num_microbatchs",), "unknown"),
        (("model",), "missing"),
        (("schedule",), "type"),
        (("stages", 1), "type"),
        (("stages", 2, 1), "type"),
    ] == [(fault.about, fault.kind) for fault in parts_of(error.value)]
    assert [
        "plan.json has the key 'num_microbatchs': a plan has no such key here. "
        "Did you mean 'num_microbatches'?",
        "plan.json lacks the key 'model': this key is required. "
        "Copy the key and its value from the original plan.",
        "plan.json, schedule is 3: a plan needs a string here. Replace this value by a string.",
        "plan.json, stages[1] is 'h.0': a plan needs a list here. Replace this value by a list.",
        "plan.json, stages[2][1] is 5: a plan needs a string here. Replace this value by a string.",
    ] == list(map(str, parts_of(error.value)))


@pytest.mark.parametrize(
    ("name", "number"),
    [("pipeline_parallel_degree", 0), ("batch_size", True), ("num_microbatches", 3)],
)
def test_numbers_that_no_plan_has_are_refused(plan, name, number):
    with pytest.raises(OptionError) as error:
        edited(plan, **{name: number})

    assert (name,) == error.value.about


def test_ranks_of_a_pipeline_are_neighbours():
    """Pipelines come one after the other; a stage's replicas sum gradients with each other."""
    options = {"pipeline_parallel_degree": 2, "schedule": "1f1b"}
    plan = find_plan(problem(Model(), ranks=4, **options))

    assert [0, 1] == [plan.rank(0, each) for each in range(2)]
    assert [2, 3] == [plan.rank(1, each) for each in range(2)]
    assert (1, 3) == plan.replicas(1)
    assert 4 == plan.world_size
