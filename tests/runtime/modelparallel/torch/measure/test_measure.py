# SPDX-License-Identifier: Apache-2.0
"""Whole models are measured and estimated, part by part, and stay as they were."""

import logging

import pytest
import torch
import zoo
from measuring import Sleeping, saved_by_the_whole
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cluster import Device
from smdist.modelparallel.torch.capture import capture
from smdist.modelparallel.torch.measure import estimate, measure

FAST = Device(name="fast", flops_per_second=1e12, bytes_per_second=1e11)
# Of the units: embeddings of tokens and places, dropout, blocks, norm, head.
GPT2_KINDS = 6


def captured(name):
    specimen = zoo.tiny(name)
    return capture(specimen.model, specimen.batch)


def total(costs, field):
    return sum(getattr(cost, field) for cost in costs.nodes.values())


def test_every_node_has_a_cost():
    """Units and glue; what is read from the batch costs nothing."""
    found = captured("gpt2")
    costs = measure(found, repeats=1)
    names = {node.name for node in found.graph.nodes if not node.name.startswith("input:")}

    assert names == set(costs.nodes)
    assert ("measured", "cpu") == (costs.source, costs.device)
    assert all(costs.of(unit.name).forward_seconds > 0 for unit in found.graph.units)


def test_seconds_are_the_units_own():
    """One sleeps twice as long as the other, in both passes."""
    model = Named(linear=nn.Linear(4, 4), one=Sleeping(0.01, 0.02), two=Sleeping(0.02, 0.04))
    costs = measure(capture(model, torch.ones(2, 4)), repeats=3)

    assert 2 == pytest.approx(costs.of("two").seconds / costs.of("one").seconds, rel=0.3)
    assert 0.03 == pytest.approx(costs.of("one").seconds, rel=0.4)


def test_twins_are_measured_once(monkeypatch, caplog):
    """GPT-2's blocks are one kind; the number is logged."""
    from smdist.modelparallel.torch.measure import measured

    tried = []
    real = measured.timed
    monkeypatch.setattr(measured, "timed", lambda *a, **k: tried.append(1) or real(*a, **k))
    found = captured("gpt2")
    with caplog.at_level(logging.INFO):
        costs = measure(found, repeats=1)
    glue = sum(not node.name.startswith("input:") for node in found.graph.nodes)
    glue -= len(found.graph.units)

    assert len(tried) <= GPT2_KINDS + glue
    assert 1 == len({costs.of(f"transformer.h.{i}").seconds for i in range(4)})
    assert f"measured {len(tried)} of {len(costs.nodes)} parts of the model" in caplog.text


@pytest.mark.parametrize("name", zoo.TEN)
def test_what_is_kept_is_what_autograd_keeps(name):
    """Summed over all nodes, the bytes that one run of the whole program keeps."""
    found = captured(name)

    assert saved_by_the_whole(found) == pytest.approx(
        total(measure(found, repeats=1), "saved_bytes"), rel=0.01
    )


@pytest.mark.parametrize("name", ["gpt2", "resnet", "dyn", "mixtral"])
def test_an_estimate_keeps_what_a_measurement_keeps(name):
    """Also where units look at their data, and so cannot be tried on fakes."""
    found = captured(name)

    assert total(measure(found, repeats=1), "saved_bytes") == pytest.approx(
        total(estimate(found, FAST), "saved_bytes"), rel=0.01
    )


@pytest.mark.parametrize("name", ["gpt2", "resnet", "dyn"])
def test_measuring_leaves_no_trace(name):
    """Parameters, gradients, statistics, the batch and random numbers."""
    found = captured(name)
    before = {key: tensor.clone() for key, tensor in found.model.state_dict().items()}
    numbers = torch.random.get_rng_state()
    measure(found, repeats=2)
    estimate(found, FAST)

    assert all(torch.equal(before[key], now) for key, now in found.model.state_dict().items())
    assert all(parameter.grad is None for parameter in found.model.parameters())
    assert torch.equal(numbers, torch.random.get_rng_state())


def test_a_model_on_meta_is_measured_unit_by_unit():
    """Real seconds from weights that exist for as long as their unit is tried."""
    with torch.device("meta"):
        specimen = zoo.tiny("gpt2")
    found = capture(specimen.model, specimen.batch)
    costs = measure(found, device="cpu", repeats=1)

    assert all(costs.of(unit.name).seconds > 0 for unit in found.graph.units)
    assert all(parameter.is_meta for parameter in found.model.parameters())
    assert total(measure(captured("gpt2"), repeats=1), "saved_bytes") == pytest.approx(
        total(costs, "saved_bytes"), rel=0.02
    )


def test_weights_count_in_the_weights_part():
    """A Linear has both; the first has no input to wait for, and ReLU has no weights."""
    model = Named(first=nn.Linear(256, 256), second=nn.Linear(256, 256), relu=nn.ReLU())
    costs = estimate(capture(model, torch.ones(64, 256)), FAST)
    first, second, relu = (costs.of(name) for name in ("first", "second", "relu"))

    assert 0 == first.input_gradient_seconds < first.weight_gradient_seconds
    assert 0 < second.input_gradient_seconds < second.weight_gradient_seconds
    assert 0 == relu.weight_gradient_seconds < relu.input_gradient_seconds


def test_an_estimate_divides_operations_by_speed():
    """2 * m * n * k over the peak where arithmetic is the limit, bytes where memory is."""
    model = Named(unit=nn.Linear(256, 512, bias=False))
    found = capture(model, torch.ones(64, 256))
    by_flops = estimate(found, Device(flops_per_second=1e9)).of("unit")
    by_bytes = estimate(found, Device(bytes_per_second=1e9)).of("unit")
    moved = 4 * (64 * 256 + 256 * 512 + 64 * 512)

    assert 2 * 64 * 256 * 512 / 1e9 == pytest.approx(by_flops.forward_seconds)
    assert moved / 1e9 == pytest.approx(by_bytes.forward_seconds)


def test_a_device_without_a_speed_is_refused():
    found = capture(nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4))
    with pytest.raises(OptionError) as caught:
        estimate(found, Device(name="lost"))

    assert ("device",) == caught.value.about


def test_no_runs_are_refused():
    found = capture(nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4))
    with pytest.raises(OptionError) as caught:
        measure(found, repeats=0)

    assert ("repeats",) == caught.value.about


def test_an_interrupted_measurement_leaves_no_trace(monkeypatch):
    """Ctrl-C in the middle of a unit: its parameters are its own again."""
    model = nn.Sequential(nn.Linear(4, 4), Interrupting())
    found = capture(model, torch.ones(2, 4))
    weights = list(model.parameters())
    monkeypatch.setattr(Interrupting, "is_armed", True)
    with pytest.raises(KeyboardInterrupt):
        measure(found)

    assert all(kept is now for kept, now in zip(weights, model.parameters(), strict=True))


class Named(nn.Module):
    """Modules one after the other."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        for part in self.children():
            x = part(x)
        return x


class Interrupting(nn.Module):
    is_armed = False

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        if self.is_armed:
            raise KeyboardInterrupt
        return self.inner(x)


def test_changes_in_place_are_measured():
    """A function and a unit that change their input in place get a copy in every run."""
    model = InPlace()
    found = capture(model, torch.ones(2, 4))
    costs = measure(found, repeats=2)

    assert all(costs.of(unit.name).forward_seconds > 0 for unit in found.graph.units)
    assert total(estimate(found, FAST), "saved_bytes") == total(costs, "saved_bytes")


def test_a_mode_of_a_part_counts():
    """A part under no_grad saves nothing and has no backward pass."""
    costs = measure(capture(Frozen(), torch.ones(2, 4)), repeats=1)

    assert 0 == costs.of("body").saved_bytes == costs.of("body").backward_seconds
    assert costs.of("head").backward_seconds > 0


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.first(x)
        x += 1
        return self.second(self.relu(x))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            x = self.body(x)
        return self.head(x)
