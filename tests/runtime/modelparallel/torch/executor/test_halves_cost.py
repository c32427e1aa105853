# SPDX-License-Identifier: Apache-2.0
"""Two halves do the work of one backward pass, and hold no more than the second one needs."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from smdist.modelparallel.torch.executor.split_backward import backward_inputs


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model():
    return nn.Sequential(Block(), nn.Conv1d(3, 3, 1), Block(), Block())


def operations(function):
    with FlopCounterMode(display=False) as counter:
        result = function()
    return counter.get_total_flops(), result


def test_no_product_is_computed_twice():
    net, x = model(), torch.randn(2, 3, 8, requires_grad=True)
    loss = net(x).sum()
    whole, _ = operations(loss.backward)
    loss = net(x).sum()
    first, (_, rest) = operations(lambda: backward_inputs([(loss, None)], [x]))
    second, _ = operations(rest.backward_parameters)

    assert whole == first + second
    assert 0.45 * whole < first < 0.55 * whole


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_between_the_halves_only_factors_and_their_gradients_are_kept():
    """Of a block, what the norm, the activation and their like saved is gone after I."""
    net, kept = Block(), {}
    for name in ("norm", "up", "down"):
        module = getattr(net, name)
        module.register_forward_hook(lambda _m, _i, out, name=name: _watch(kept, name, out))
    x = torch.randn(4, 8, requires_grad=True)
    output = net(x)
    output, loss = None, output.sum()
    _, rest = backward_inputs([(loss, None)], [x])
    loss = None
    after_inputs = {name for name, each in kept.items() if each() is not None}
    rest.backward_parameters()
    after_parameters = {name for name, each in kept.items() if each() is not None}

    assert {"norm"} == after_inputs, "a factor of `up`; what `up` made is one of nothing"
    assert set() == after_parameters


def _watch(kept, name, tensor):
    kept[name] = weakref.ref(tensor.untyped_storage())


@pytest.mark.usefixtures("no_collector")
def test_a_rest_that_is_let_go_takes_all_with_it():
    """Without W nothing is left behind either: no cycles, no hooks that hold on."""
    net, kept = Block(), {}
    net.norm.register_forward_hook(lambda _m, _i, out: _watch(kept, "norm", out))
    x = torch.randn(4, 8, requires_grad=True)
    _, rest = backward_inputs([(net(x).sum(), None)], [x])
    held = kept["norm"]() is not None
    rest = None  # noqa: F841  that is the test

    assert held
    assert kept["norm"]() is None


def test_second_halves_leave_nothing_to_do():
    net, x = Block(), torch.randn(4, 8, requires_grad=True)
    _, rest = backward_inputs([(net(x).sum(), None)], [x])
    rest.backward_parameters()
    before = net.up.weight.grad.clone()
    rest.backward_parameters()

    assert torch.equal(before, net.up.weight.grad)
