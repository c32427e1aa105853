# SPDX-License-Identifier: Apache-2.0
"""Seconds are those that a unit takes, pass by pass."""

import pytest
import torch
from measuring import CPU, Sleeping, standing_in, trial_of
from torch import nn

from smdist.modelparallel.torch.measure.timing import timed


def times(module, *inputs, repeats=3, seconds=10):
    with standing_in(module):
        return timed(trial_of(module, *inputs), device=CPU, repeats=repeats, seconds=seconds)


def test_sleep_is_measured_in_each_pass():
    """20 ms forward, 40 ms backward, all of it on the way to the input."""
    found = times(Sleeping(0.02, 0.04), torch.ones(4, requires_grad=True))

    assert 0.02 == pytest.approx(found.forward, rel=0.4)
    assert 0.04 == pytest.approx(found.backward, rel=0.4)
    assert 0.04 == pytest.approx(found.input_gradient, rel=0.4)


def test_an_input_without_gradient_has_none_to_wait_for():
    """Without a gradient of the input, the whole backward pass is for the weight."""
    found = times(nn.Linear(64, 64), torch.ones(32, 64))

    assert 0 == found.input_gradient < found.backward


def test_a_unit_without_weights_has_only_the_inputs_part():
    found = times(nn.GELU(), torch.ones(32, 64, requires_grad=True))

    assert 0 < found.input_gradient == found.backward


def test_what_has_no_gradient_has_no_backward_pass():
    found = times(nn.ReLU(), torch.ones(32, 64))

    assert 0 == found.backward < found.forward


def test_an_input_changed_in_place_is_measured():
    """The batch's own tensor stays as it was."""
    x = -torch.ones(4, requires_grad=True)
    found = times(nn.ReLU(inplace=True), x.detach().requires_grad_())

    assert found.backward > 0
    assert torch.equal(-torch.ones(4), x.detach())


def test_one_run_is_made_when_there_is_no_time():
    found = times(nn.ReLU(), torch.ones(4), repeats=1_000_000, seconds=0)

    assert found.forward > 0
