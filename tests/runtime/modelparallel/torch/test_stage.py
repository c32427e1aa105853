# SPDX-License-Identifier: Apache-2.0
"""A stage is the user's modules under the user's names, and nothing else."""

import weakref
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.placement import Placement, place
from smdist.modelparallel.torch.capture import arguments_of, capture
from smdist.modelparallel.torch.materialization.stage_module import StageModule

BATCH = {"x": torch.linspace(-1, 1, 12).view(3, 4)}


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.register_buffer("shift", torch.ones(4))
        self.register_buffer("hidden", torch.ones(4), persistent=False)
        self.offset = torch.full((4,), 0.5)

    def forward(self, x):
        x = self.layers[0](x) * self.scale
        x = self.layers[1](x) + self.shift + self.hidden
        return self.layers[2](x) + self.offset


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm = Deep(), nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.body.layers[0].weight

    def forward(self, x):
        return {"first": self.norm(x), "last": self.head(self.body(x))}


STAGE_OF = {
    "norm": 0,
    "body.layers.0": 0,
    "body.layers.1": 1,
    "body.layers.2": 1,
    "head": 2,
}


@pytest.fixture
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Model()


@pytest.fixture
def captured(model):
    return capture(model, BATCH)


@pytest.fixture
def stages(captured):
    placement = place(captured.graph, STAGE_OF)
    return [StageModule(captured, placement, number) for number in range(3)]


def test_the_modules_are_the_users(model, stages):
    named = dict(stages[1].named_modules())

    assert model.body.layers[1] is named["body.layers.1"]
    assert model.body.layers[0] not in named.values()


def test_names_are_those_of_the_model(model, stages):
    """Parameters, buffers, and which buffers are saved."""
    names = [set(stage.state_dict()) for stage in stages]

    assert set(model.state_dict()) == names[0] | names[1] | names[2]
    assert {"head.weight"} == names[2]
    assert {"body.scale", "body.layers.0.weight", "body.layers.0.bias"} < names[0]
    assert "body.shift" in names[1]
    assert "body.hidden" in dict(stages[1].named_buffers())
    assert "body.hidden" not in names[1]


def test_parameters_are_shared_with_the_model(model, stages):
    assert model.body.scale is dict(stages[0].named_parameters())["body.scale"]
    assert model.head.weight is dict(stages[2].named_parameters())["head.weight"]


def test_stages_pass_on_what_the_next_ones_read(model, stages):
    arguments = arguments_of(BATCH)
    expected = model(**BATCH)

    values = {}
    for stage in stages:
        received = {name: values[name].detach() for name in stage.route.receives}
        assert set(stage.route.receives) <= set(values)
        values |= stage(received, arguments)
    output = stages[-1].output(values)

    assert ["first", "last"] == list(output)
    assert torch.equal(expected["last"], output["last"])
    assert torch.equal(expected["first"], output["first"])


def test_a_stage_needs_nothing_of_the_others(model):
    """Each on a copy of its own, where all that is not the stage's is not a number."""
    arguments = arguments_of(BATCH)
    expected = model(**BATCH)
    model.norm.reset_running_stats()

    values = {}
    for number in range(3):
        copy = deepcopy(model)
        captured = capture(copy, BATCH)
        stage = StageModule(captured, place(captured.graph, STAGE_OF), number)
        own = {id(tensor) for tensor in [*stage.parameters(), *stage.buffers()]}
        for tensor in [*copy.parameters(), *copy.buffers()]:
            if id(tensor) not in own and tensor.is_floating_point():
                tensor.data.fill_(float("nan"))
        values |= stage({name: values[name] for name in stage.route.receives}, arguments)

    output = stage.output(values)
    assert torch.equal(expected["last"], output["last"])
    assert torch.equal(expected["first"], output["first"])


def test_only_what_is_asked_for_outlives_a_stage(stages):
    values = stages[0]({}, arguments_of(BATCH))

    assert set(stages[0].route.sends) == set(values)
    assert {"norm", "body:mul"} == set(values)


def test_units_may_be_wrapped_after_the_stage_was_made(model, stages):
    stages[2]._modules["head"] = nn.Sequential(model.head, nn.ReLU())
    arguments = arguments_of(BATCH)

    values = stages[0]({}, arguments)
    values |= stages[1]({"body:mul": values["body:mul"]}, arguments)
    output = stages[2].output(stages[2](values, arguments))

    assert bool((output["last"] >= 0).all())


def test_a_stage_switches_its_units_alone(model, stages):
    stages[0].eval()

    assert not model.norm.training
    assert model.head.training


def test_names_of_modules_may_be_any():
    """Also those that our own class or PyTorch's uses for something else."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.route, self.output_ = nn.Linear(4, 4), nn.Linear(4, 4)
            self._modules["output"] = nn.Linear(4, 4)

        def forward(self, x):
            return self._modules["output"](self.output_(self.route(x)))

    captured = capture(Odd(), BATCH["x"])
    placement = place(captured.graph, {"route": 0, "output_": 0, "output": 0})
    stage = StageModule(captured, placement, 0)

    values = stage({}, arguments_of(BATCH["x"]))

    assert torch.equal(captured.model(BATCH["x"]), stage.output(values))


def test_a_module_with_statistics_is_on_one_stage(model, captured):
    """Called again on another stage, it would have two sets of them."""
    first = captured.program.calls[0]
    calls = [
        replace(first, name=name, module="norm", function=None, has_state=True)
        for name in ("norm", "norm@2")
    ]
    twice = replace(captured, program=replace(captured.program, calls=tuple(calls)))
    placement = Placement(num_stages=2, stages={"norm": (0,), "norm@2": (1,)}, edges=(), ties=())

    with pytest.raises(OptionError) as caught:
        StageModule(twice, placement, 0)

    assert ("norm",) == caught.value.about


def test_inputs_of_another_form_are_refused(stages):
    with pytest.raises(OptionError) as caught:
        stages[0]({}, arguments_of((BATCH["x"],)))

    assert "nesting" == caught.value.kind


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x, scale):
        return self.a(x).view(3, 4) * scale


@pytest.mark.parametrize(
    ("batch", "about", "kind"),
    [
        ({"x": torch.ones(2, 4), "scale": 2.0}, ("input:x",), "shape"),
        ({"x": torch.ones(3, 4).double(), "scale": 2.0}, ("input:x",), "dtype"),
        ({"x": torch.ones(3, 4), "scale": 3.0}, ("scale",), "constant"),
    ],
)
def test_inputs_that_the_program_was_not_made_for_are_refused(batch, about, kind):
    """Inputs with another constant than at capture are refused."""
    captured = capture(Scaled(), {"x": torch.ones(3, 4), "scale": 2.0})
    stage = StageModule(captured, place(captured.graph, {"a": 0}), 0)

    with pytest.raises(OptionError) as caught:
        stage({}, arguments_of(batch))

    assert (about, kind) == (caught.value.about, caught.value.kind)


def test_values_are_let_go_after_their_last_reader(captured):
    """A value is freed after its last reader, as if a variable were reused."""
    alive = []

    class Watching(nn.Linear):
        def forward(self, x):
            alive.append([name for name, value in seen.items() if value() is not None])
            result = super().forward(x)
            seen[len(seen)] = weakref.ref(result)
            return result

    seen = {}
    model = nn.Sequential(*(Watching(4, 4) for _ in range(4)))
    chain = capture(model, BATCH["x"])
    stage = StageModule(chain, place(chain.graph, dict.fromkeys("0123", 0)), 0)
    seen.clear()
    alive.clear()

    with torch.no_grad():
        stage({}, arguments_of(BATCH["x"]))

    assert [[], [0], [1], [2]] == alive
