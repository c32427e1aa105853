# SPDX-License-Identifier: Apache-2.0
"""`smp.plan`: from a model to a plan; drawn, saved, edited, and said anew."""

import json
import logging

import pytest
import torch
from torch import nn

from sagemaker_dist.errors import OptionError
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
    """As in SageMaker's library; the plan says so."""
    model = on_meta()
    set_partition(model[0], 1)
    found = plan(model, BATCH, cluster(2), pipeline_parallel_degree=2)

    assert "0.0" in found.stages[0] or "0" in found.stages[0]
    assert any("the marks have no effect" in note for note in found.notes)


def test_state_counts():
    """Less state, less memory."""
    options = {"pipeline_parallel_degree": 2, "microbatches": 4, "pipeline": "1f1b"}
    adam = plan(on_meta(), BATCH, cluster(2), **options)
    plain = plan(on_meta(), BATCH, cluster(2), **options, state=StateBytes(optimizer=0))

    assert sum(each.state_bytes for each in adam.forecast.memory) == 2 * sum(
        each.state_bytes for each in plain.forecast.memory
    )


def test_device_memory_is_held_to():
    """As text; what does not fit is refused with what would."""
    with pytest.raises(OptionError, match=r"device_memory is 4\.00 KiB: no plan fits"):
        plan(on_meta(), BATCH, cluster(), device_memory="4KiB")


def test_unknown_speed_is_noted():
    """Times are those of a device that is named."""
    found = plan(on_meta(), BATCH, Cluster(ranks_per_host=2), pipeline_parallel_degree=2)

    assert any("How fast cpu is, nobody said" in note for note in found.notes)
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
    """What could not be taken apart is one unit, and why."""
    model = nn.Sequential(Picky(), *net(depth=3))
    found = plan(model, BATCH, cluster(2), costs="estimate", microbatches=4)

    assert any("'0' is one unit" in note for note in found.notes), found.notes


def test_long_work_is_logged(caplog):
    """A line for each size of microbatches."""
    with caplog.at_level(logging.INFO, "smdist.modelparallel.torch.planning.sampler"):
        plan(on_meta(), BATCH, cluster(2), microbatches=4)

    assert "Sequential with microbatches of 4" in caplog.text
    assert "units, estimated, in" in caplog.text


class Stubborn(nn.Module):
    """Whose own forward function asks for values."""

    def forward(self, x):
        return x + 1 if float(x.sum()) > 0 else x


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"world": 0}, OptionError, "world is 0"),
        ({"world": True}, OptionError, "world is True"),
        ({"world": "4"}, OptionError, "world is '4'"),
        ({"example": [1]}, OptionError, "example is list"),
        ({"microbatches": 3}, OptionError, "cannot be divided .* 1, 2, 4, 8, 16"),
        ({"microbatches": "many"}, OptionError, "microbatches is 'many'"),
        ({"device_memory": "lots"}, OptionError, "device_memory is 'lots'"),
        ({"pipeline": "1f2b"}, OptionError, "pipeline is '1f2b': .* Did you mean '1f1b'"),
        ({"model": net}, OptionError, "model is function: it is a torch.nn.Module"),
        (
            {"world": 0, "example": 3, "costs": "", "pipeline": "", "device_memory": 0},
            OptionError,
            "5 faults in this request",
        ),
        ({"costs": "guess"}, OptionError, "costs is 'guess'"),
        ({"pipeline_parallel_degree": 3}, OptionError, "the cluster has 4 ranks"),
        ({"optimize": "both", "memory_weight": 7}, OptionError, "2 faults"),
        (
            {"costs": "", "pipeline": "", "microbatches": 3, "memory_weight": 5},
            OptionError,
            "4 faults",
        ),
        ({"default_partition": "0"}, OptionError, "default_partition is '0'"),
        (
            {"state": (2, 2, 12)},
            OptionError,
            r"smp\.StateBytes\(weight=2, gradient=2, optimizer=12\)",
        ),
        ({"auto_partition": 1}, OptionError, "auto_partition is 1: .* True or False"),
        ({"optimize": "speed", "memory_weight": 0.5}, OptionError, "Leave one of them out"),
        ({"model": Stubborn()}, CaptureError, "Stubborn cannot be taken apart"),
    ],
)
def test_faults(changes, error, said):
    """Each names the option or the module."""
    asked = {"model": on_meta(), "example": BATCH, "world": cluster(), **changes}
    with pytest.raises(error, match=said):
        plan(**asked)


@pytest.fixture(scope="module")
def planned():
    """Four stages of a model on meta."""
    return plan(on_meta(), BATCH, cluster(), pipeline_parallel_degree=4, pipeline="1f1b")


def test_file_is_the_cores(planned, tmp_path):
    """It has no more than the core's plan has, and each reads it."""
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
    """As people do it: saved, changed by hand, loaded."""
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
    ("change", "said"),
    [
        (lambda document: document["stages"].reverse(), "stage"),
        (lambda document: document["stages"][0].append("7.linear"), "no such module"),
        (lambda document: document.update(data_parallel_degree=2), "the plan is for 8 ranks"),
        (lambda document: document.update(batch_size=32), "the example has 16 samples"),
    ],
)
def test_edited_plans_that_cannot_run(planned, tmp_path, change, said):
    changed = edited(planned, tmp_path, change)
    with pytest.raises(OptionError, match=said):
        forecast(changed, on_meta(), BATCH, cluster())


def test_edited_plan_that_holds_too_much(planned):
    with pytest.raises(OptionError, match=r"rank \d holds .* may use"):
        forecast(planned, on_meta(), BATCH, cluster(), device_memory="1KiB")


def test_loaded_plan_is_not_drawn(planned, tmp_path):
    """What units cost is not in the file; the hint is a call."""
    planned.save(tmp_path / "plan.json")
    with pytest.raises(OptionError, match=r"Draw what smp\.forecast"):
        Plan.load(tmp_path / "plan.json").plot()
