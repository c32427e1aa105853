# SPDX-License-Identifier: Apache-2.0
"""Verification finds what is wrong, says where, and leaves the model as it was."""

import math
import sys
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.verification.compare import worst
from smdist.modelparallel.torch.verification.verify import VerifyError, verify

BATCH = torch.linspace(-1, 1, 12).view(3, 4)


def layers(count=4):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parts = [part for _ in range(count) for part in (nn.Linear(4, 4), nn.Tanh())]
        return nn.Sequential(*parts, nn.BatchNorm1d(4))


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_split_model_is_the_model(stages):
    found = verify(layers(), BATCH, stages=stages)

    assert stages == len(found.stages)
    assert found.relative_error <= 1e-6
    assert 0.0 == found.output_error == found.buffer_error


def test_what_was_found_is_one_sentence():
    found = verify(layers(1), BATCH, stages=2)

    assert str(found).startswith("Sequential on 2 stages is the whole model: gradients differ by ")
    assert 400 > len(repr(found))


def test_stages_may_be_named():
    names = [["0"], ["1", "2", "3", "4", "5", "6"], ["7", "8"]]

    assert tuple(map(tuple, names)) == verify(layers(), BATCH, stages=names).stages


def test_a_plan_says_where_the_stages_are():
    @dataclass
    class Plan:
        stages: tuple
        opened: tuple = ()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return x + self.b(self.a(x))

    model = nn.Sequential(Block(), Block())
    plan = Plan(stages=(("0", "1.a"), ("1.b",)), opened=("1",))

    assert plan.stages == verify(model, BATCH, plan=plan).stages


def test_a_model_is_as_it_was():
    model = layers()
    model[0].weight.grad = torch.ones(4, 4)
    gradient, state = model[0].weight.grad, torch.get_rng_state()

    verify(model, BATCH)

    assert gradient is model[0].weight.grad
    assert torch.equal(torch.ones(4, 4), gradient)
    assert model[2].weight.grad is None
    assert 0 == model[-1].num_batches_tracked.item()
    assert torch.equal(state, torch.get_rng_state())
    assert model.training


def test_a_loss_of_the_callers_is_used():
    calls = []

    def loss(output):
        calls.append(output.shape)
        return output.square().mean()

    found = verify(layers(), BATCH, loss=loss)

    assert [(3, 4), (3, 4)] == calls
    assert found.relative_error <= 1e-6


class Spoilt(StageModule):
    """A stage that computes something else."""

    def forward(self, received, arguments, around):
        values = super().forward(received, arguments, around)
        return {name: value * 1.01 for name, value in values.items()}


def test_another_output_is_found(monkeypatch):
    monkeypatch.setattr(sys.modules[verify.__module__], "StageModule", Spoilt)

    with pytest.raises(VerifyError) as caught:
        verify(layers(), BATCH)

    assert ("output", ("output 0",)) == (caught.value.kind, caught.value.about)


class Careless(StageModule):
    """A stage that cuts a gradient off, and computes the right output all the same."""

    def forward(self, received, arguments, around):
        cut = {name: value.detach() for name, value in received.items()}
        return super().forward(cut, arguments, around)


def test_a_missing_gradient_is_found_and_its_module_named(monkeypatch):
    monkeypatch.setattr(sys.modules[verify.__module__], "StageModule", Careless)

    with pytest.raises(VerifyError) as caught:
        verify(layers(), BATCH)

    assert ("gradient", ("0.weight",)) == (caught.value.kind, caught.value.about)
    assert (
        "the gradient '0.weight' of '0' differs between the split and the whole model by inf of "
        "its norm, more than the tolerance 1e-05: a side effect of a forward function on one stage "
        "does not reach the other stages. Pass stages= that put the modules with a common side "
        "effect on one stage."
    ) == str(caught.value)


@pytest.mark.parametrize("tensor", ["0.weight", "8.weight", "8.running_var"])
def test_a_stage_that_reaches_for_others_is_found(monkeypatch, tensor):
    """A stage that reads a tensor of another stage is found, although it works in one process."""
    model = layers()

    class Reaching(StageModule):
        def forward(self, received, arguments, around):
            values = super().forward(received, arguments, around)
            nothing = 0 * dict(model.state_dict(keep_vars=True))[tensor].detach().sum()
            return {name: value + nothing for name, value in values.items()}

    monkeypatch.setattr(sys.modules[verify.__module__], "StageModule", Reaching)

    with pytest.raises(VerifyError) as caught:
        verify(model, BATCH)

    assert "output" == caught.value.kind


def test_another_buffer_is_found(monkeypatch):
    class Twice(StageModule):
        def forward(self, received, arguments, around):
            super().forward(received, arguments, around)
            return super().forward(received, arguments, around)

    monkeypatch.setattr(sys.modules[verify.__module__], "StageModule", Twice)

    with pytest.raises(VerifyError) as caught:
        verify(layers(), BATCH)

    assert ("buffer", ("8.num_batches_tracked",)) == (caught.value.kind, caught.value.about)


def test_a_model_without_numbers_is_refused():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    with pytest.raises(OptionError) as caught:
        verify(model, BATCH)

    assert ("model",) == caught.value.about


def test_more_stages_than_units_are_refused():
    with pytest.raises(OptionError) as caught:
        verify(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), BATCH, stages=3)

    assert ("stages",) == caught.value.about


def test_a_gradient_is_measured_against_itself():
    found = worst(
        {"a": torch.ones(4), "b": torch.ones(4)}, {"a": torch.ones(4) * 1.5, "b": torch.ones(4)}
    )

    assert "a" == found.name
    assert 0.5 == pytest.approx(found.error)


def test_rounding_of_a_gradient_of_zero_is_no_error():
    """A gradient that is zero except for rounding, such as of an attention's key bias, passes."""
    expected = {"key": torch.full((4,), 1e-9), "query": torch.ones(4)}

    found = worst(expected, {**expected, "key": torch.full((4,), -1e-9)})

    assert found.error <= 1e-5


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (torch.ones(4), None),
        (None, torch.ones(4)),
        (torch.ones(4), torch.ones(2, 2)),
        (torch.ones(4), torch.ones(4, dtype=torch.float64)),
        (torch.ones(4), torch.full((4,), math.nan)),
        (torch.ones(4), torch.full((4,), math.inf)),
        (torch.zeros(4), torch.ones(4)),
        (torch.arange(4), torch.arange(4) + 1),
    ],
)
def test_what_cannot_be_compared_is_infinitely_wrong(expected, found):
    assert math.inf == worst({"a": expected}, {"a": found}).error


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 1.0])
def test_the_same_is_the_same(value):
    tensor = torch.full((4,), value)

    assert 0.0 == worst({"a": tensor, "b": None}, {"a": tensor.clone(), "b": None}).error
