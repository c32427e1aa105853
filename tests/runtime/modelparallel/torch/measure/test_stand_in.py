# SPDX-License-Identifier: Apache-2.0
"""A trial leaves the model as it was."""

import pytest
import torch
from measuring import standing_in
from torch import nn


def trained(module, shape):
    with standing_in(module):
        module(torch.randn(*shape)).sum().backward()


def test_gradients_and_statistics_stay():
    """BatchNorm counts no batch, and no parameter has a gradient that it had not."""
    module = nn.BatchNorm1d(4)
    module.weight.grad = torch.full((4,), 7.0)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    trained(module, (8, 4))

    assert before.keys() == module.state_dict().keys()
    assert all(torch.equal(before[name], now) for name, now in module.state_dict().items())
    assert torch.equal(torch.full((4,), 7.0), module.weight.grad)
    assert module.bias.grad is None


def test_hooks_of_parameters_do_not_run():
    """Hooks of parameters, such as an optimizer in the backward pass, do not run."""
    module, calls = nn.Linear(4, 4), []
    module.weight.register_post_accumulate_grad_hook(calls.append)
    trained(module, (8, 4))

    assert [] == calls


def test_parameters_are_the_same_objects_afterwards():
    """Also when the trial fails; an optimizer that holds them goes on."""
    module = nn.Linear(4, 4)
    weight = module.weight
    with pytest.raises(RuntimeError, match="shapes"):
        trained(module, (8, 5))

    assert weight is module.weight is module._parameters["weight"]


def test_memory_is_the_models_own():
    module = nn.Linear(4, 4)
    with standing_in(module) as stand_ins:
        assert module.weight.untyped_storage()._cdata in stand_ins.storages
        inside = module.weight.data_ptr()

    assert inside == module.weight.data_ptr()


def test_tied_parameters_stay_tied():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    both = nn.Sequential(first, second)
    with standing_in(both):
        assert first.weight is second.weight


def test_python_state_is_put_back():
    """A count that forward keeps, a list that it fills, and what it added."""
    module = Counting()
    trained(module, (2, 4))

    assert 0 == module.count
    assert [] == module.seen
    assert not hasattr(module, "last")


def test_meta_parameters_become_real_and_go_again():
    """Random numbers that are the same in no two rows, and a variance above zero."""
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with standing_in(module):
        weight = module[0].weight
        assert 16 == len(weight.unique())
        assert (module[1].running_var > 0).all()

    assert all(parameter.is_meta for parameter in module.parameters())


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.count, self.seen = 0, []

    def forward(self, x):
        self.count += 1
        self.last = x
        self.seen.append(x)
        return x * self.weight
