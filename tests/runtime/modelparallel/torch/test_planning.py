# SPDX-License-Identifier: Apache-2.0
"""Tests of `smp.plan` and `smp.forecast`: plans are made, drawn, saved, edited and forecast."""

import json
import logging

import pytest
import torch
from torch import nn

from sagemaker_dist.errors import OptionError, parts_of
from smdist.modelparallel.core import plan as core
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Link, StateBytes
from smdist.modelparallel.torch.capture import CaptureError
from smdist.modelparallel.torch.planning.make_plan import Plan, forecast, plan
from smdist.modelparallel.torch.program.partition_marks import set_partition

LINK = Link(latency_seconds=1e-5, bytes_per_second=1e9)
FAST = Device(name="fast", memory_bytes=2**30, flops_per_second=1e12, bytes_per_second=1e11)


def net(depth=6, width=64):
    """A chain of equal units and a head that takes more."""
    layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Linear(width, 4 * width))


def on_meta(**sizes):
    with torch.device("meta"):
        return net(**sizes)


def cluster(ranks=4, **changes):
    return Cluster(**{"ranks_per_host": ranks, "inside": LINK, "device": FAST, **changes})


BATCH = torch.zeros(16, 64)


def test_plan_of_a_model_on_meta():
    """Costs are estimated for the cluster's device; every unit has a stage."""
    found = plan(on_meta(), BATCH, cluster(), pipeline_parallel_degree=4)

    assert (4, 1, 16) == (
        found.pipeline_parallel_degree,
        found.data_parallel_degree,
        found.batch_size,
    )
    assert 7 <= sum(map(len, found.stages))
    assert ("estimated", "fast") == (found.forecast.source, found.forecast.device)
    assert found.forecast.memory_limit_bytes == 2**30
    assert "on 4 ranks" in found.explain()


def test_plan_of_a_model_with_values():
    """Costs are measured here, and the model stays as it was."""
    model = net(depth=3, width=8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = plan(model, torch.zeros(4, 8), 2, pipeline_parallel_degree=2, microbatches=2)

    assert ("measured", "cpu") == (found.forecast.source, found.forecast.device)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training
    assert all(each.grad is None for each in model.parameters())


def test_model_with_values_may_be_estimated():
    found = plan(net(), BATCH, cluster(2), costs="estimate", microbatches=4)

    assert "estimated" == found.forecast.source


@pytest.mark.parametrize(
    ("options", "decided"),
    [
        ({"microbatches": 8, "pipeline_parallel_degree": 2}, ("num_microbatches", 8)),
        ({"data_parallel_degree": 2}, ("data_parallel_degree", 2)),
        ({"pipeline": "simple", "pipeline_parallel_degree": 4}, ("schedule", "simple")),
        (
            {"pipeline": "interleaved", "active_microbatches": 3, "pipeline_parallel_degree": 2},
            ("active_microbatches", 3),
        ),
        (
            {"pipeline": "looped_bfs", "virtual_stages": 3, "pipeline_parallel_degree": 2},
            ("virtual_stages", 3),
        ),
    ],
)
def test_what_is_decided_already_stays(options, decided):
    found = plan(on_meta(), BATCH, cluster(), **options)
    name, value = decided

    assert value == getattr(found, name)


def test_units_that_are_marked():
    """`smp.set_partition` decides, and default_partition takes the rest."""
    model = on_meta()
    set_partition(model[6], 1)
    found = plan(
        model, BATCH, cluster(2), auto_partition=False, default_partition=0,
        pipeline_parallel_degree=2,
    )  # fmt: skip

    assert ("6",) == found.stages[1]


def test_a_mark_within_a_unit_opens_it():
    """The cut lies where the marks are, also in a plan that comes back from its file."""
    model = on_meta()
    for name in ("3.1", "4", "5", "6"):
        set_partition(model.get_submodule(name), 1)
    found = plan(
        model, BATCH, cluster(2), auto_partition=False, default_partition=0,
        pipeline_parallel_degree=2,
    )  # fmt: skip
    again = forecast(core.Plan.from_document(found.document()), model, BATCH, cluster(2))

    assert "3.0" == found.stages[0][-1]
    assert "3.1" == found.stages[1][0]
    assert found.stages == again.stages


def test_marks_do_nothing_where_the_planner_places_units():
    """A note of the plan says that the marks have no effect, as in SMP v1."""
    model = on_meta()
    set_partition(model[0], 1)
    found = plan(model, BATCH, cluster(2), pipeline_parallel_degree=2)

    assert "0.0" in found.stages[0] or "0" in found.stages[0]
    assert "ignored_marks" in {note.kind for note in found.notes}


def test_state_counts():
    """Less state, less memory."""
    options = {"pipeline_parallel_degree": 2, "microbatches": 4, "pipeline": "1f1b"}
    adam = plan(on_meta(), BATCH, cluster(2), **options)
    plain = plan(on_meta(), BATCH, cluster(2), **options, state=StateBytes(optimizer=0))

    assert sum(each.state_bytes for each in adam.forecast.memory) == 2 * sum(
        each.state_bytes for each in plain.forecast.memory
    )


def test_device_memory_is_held_to():
    """A plan that does not fit into the given memory is refused."""
    with pytest.raises(OptionError) as caught:
        plan(on_meta(), BATCH, cluster(), device_memory="4KiB")

    assert (("device_memory",), "memory") == (caught.value.about, caught.value.kind)


def test_unknown_speed_is_noted():
    """Times are those of a device that is named."""
    found = plan(on_meta(), BATCH, Cluster(ranks_per_host=2), pipeline_parallel_degree=2)

    assert "unknown_speed" in {note.kind for note in found.notes}
    assert "1 TFLOP/s" in found.forecast.device


class Picky(nn.Module):
    """A container of blocks whose forward function asks for values."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(net(depth=2)[:2] for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if float(x.detach().sum()) > 0 else x
        return x


def test_units_against_the_rule_are_noted():
    """A module that cannot be recorded is one unit, and a note has the reason."""
    model = nn.Sequential(Picky(), *net(depth=3))
    found = plan(model, BATCH, cluster(2), costs="estimate", microbatches=4)

    assert ("uncut_module", "0") in {(note.kind, note.about) for note in found.notes}


def test_long_work_is_logged(caplog):
    """A line for each size of microbatches."""
    with caplog.at_level(logging.INFO, "smdist.modelparallel.torch.planning.sampler"):
        plan(on_meta(), BATCH, cluster(2), microbatches=4)

    assert "Sequential with microbatches of 4" in caplog.text
    assert "units, estimated, in" in caplog.text


class Stubborn(nn.Module):
    """Model whose own forward function reads values of a tensor."""

    def forward(self, x):
        return x + 1 if float(x.sum()) > 0 else x


@pytest.mark.parametrize(
    "changes",
    [
        {"world": 0},
        {"world": True},
        {"world": "4"},
        {"example": [1]},
        {"microbatches": 3},
        {"microbatches": "many"},
        {"device_memory": "lots"},
        {"pipeline": "1f2b"},
        {"model": net},
        {"world": 0, "example": 3, "costs": "", "pipeline": "", "device_memory": 0},
        {"costs": "guess"},
        {"pipeline_parallel_degree": 3},
        {"memory_weight": 7},
        {"costs": "", "pipeline": "", "microbatches": 3, "memory_weight": 5},
        {"default_partition": "0"},
        {"state": (2, 2, 12)},
        {"auto_partition": 1},
    ],
)
def test_faults_are_about_their_options(changes):
    arguments = {"model": on_meta(), "example": BATCH, "world": cluster(), **changes}
    with pytest.raises(OptionError) as caught:
        plan(**arguments)

    assert set(changes) == {name for each in parts_of(caught.value) for name in each.about}


def test_optimize_and_memory_weight_exclude_each_other():
    with pytest.raises(OptionError) as caught:
        plan(on_meta(), BATCH, cluster(), optimize="speed", memory_weight=0.5)

    assert (("optimize",), "conflict") == (caught.value.about, caught.value.kind)


def test_model_that_cannot_be_recorded_is_refused():
    with pytest.raises(CaptureError):
        plan(Stubborn(), BATCH, cluster())


@pytest.fixture(scope="module")
def planned():
    """Four stages of a model on meta."""
    return plan(on_meta(), BATCH, cluster(), pipeline_parallel_degree=4, pipeline="1f1b")


def test_file_is_the_cores(planned, tmp_path):
    """The core's `Plan` reads the file of a `smp.Plan`, and they are equal."""
    planned.save(tmp_path / "plan.json")

    assert planned == Plan.load(tmp_path / "plan.json")
    assert core.Plan.load(tmp_path / "plan.json").stages == planned.stages


def test_picture_is_of_the_forecast(planned, tmp_path):
    """The step that is drawn is the step that was forecast."""
    picture = planned.plot(tmp_path / "plan.png")
    step = picture.figure.axes[2]
    scale = {"s": 1, "ms": 1e-3, "µs": 1e-6}[step.get_xlabel()]

    assert planned.forecast.step_seconds == pytest.approx(step.get_xlim()[1] * scale)
    assert (tmp_path / "plan.png").stat().st_size > 10_000


def edited(planned, tmp_path, change):
    """Return a plan that was saved, changed by `change` and loaded."""
    path = tmp_path / "plan.json"
    planned.save(path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return Plan.load(path)


def test_edited_plan_gets_a_forecast_of_its_own(planned, tmp_path):
    """A unit that was moved makes its new stage longer; the plan can be drawn again."""

    def change(document):
        stages = document["stages"]
        stages[1].insert(0, stages[0].pop())

    changed = edited(planned, tmp_path, change)
    again = forecast(changed, on_meta(), BATCH, cluster())

    assert changed.is_stale
    assert not again.is_stale
    assert changed.stages == again.stages
    assert again.forecast.stages[1].seconds > planned.forecast.stages[1].seconds
    assert again.plot() is not None


def test_forecast_of_a_plan_as_it_is_says_the_same(planned):
    again = forecast(planned, on_meta(), BATCH, cluster())

    assert planned.forecast == again.forecast


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (
            lambda document: document["stages"].reverse(),
            [(("stage_of", unit), "stage_order") for unit in ("2", "4", "6")],
        ),
        (
            lambda document: document["stages"][0].append("7.linear"),
            [(("stages", 0, "7.linear"), "unknown")],
        ),
        (
            lambda document: document.update(data_parallel_degree=2),
            [(("pipeline_parallel_degree",), "difference")],
        ),
        (
            lambda document: document.update(batch_size=32),
            [(("batch_size",), "difference")],
        ),
    ],
)
def test_edited_plans_that_cannot_run(planned, tmp_path, change, faults):
    changed = edited(planned, tmp_path, change)
    with pytest.raises(OptionError) as caught:
        forecast(changed, on_meta(), BATCH, cluster())

    assert faults == [(each.about, each.kind) for each in parts_of(caught.value)]


def test_edited_plan_that_holds_too_much(planned):
    with pytest.raises(OptionError) as caught:
        forecast(planned, on_meta(), BATCH, cluster(), device_memory="1KiB")

    assert (("stages",), "memory") == (caught.value.about, caught.value.kind)


def test_loaded_plan_is_not_drawn(planned, tmp_path):
    """The file has no costs of units, so the plan must be forecast first."""
    planned.save(tmp_path / "plan.json")
    with pytest.raises(OptionError) as caught:
        Plan.load(tmp_path / "plan.json").plot()

    assert "no_costs" == caught.value.kind
