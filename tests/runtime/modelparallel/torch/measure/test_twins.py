# SPDX-License-Identifier: Apache-2.0
"""Twins are found, and nothing else is taken for one."""

import pytest
import torch
from torch import nn

from smdist.modelparallel.torch.measure.call_kinds import module_kind


class Named(nn.Module):
    def __init__(self, layer_idx, act=torch.relu, power=1, width=4):
        super().__init__()
        self.layer_idx, self.act, self.power = layer_idx, act, power
        self.inner = nn.Sequential(nn.Linear(width, 4), nn.Dropout(0.1))


def test_layers_that_differ_by_number_alone_are_twins():
    assert module_kind(Named(0)) == module_kind(Named(7))
    assert hash(module_kind(Named(0))) == hash(module_kind(Named(7)))


@pytest.mark.parametrize(
    "other",
    [
        Named(0, act=torch.tanh),
        Named(0, power=2),
        Named(0, width=5),
        Named(0).eval(),
        Named(0).requires_grad_(False),
        Named(0).double(),
        nn.Linear(4, 4),
    ],
    ids=["function", "number", "shape", "mode", "frozen", "dtype", "class"],
)
def test_other_modules_are_no_twins(other):
    assert module_kind(Named(0)) != module_kind(other)


def test_what_a_module_says_of_itself_counts():
    """A dropout of another rate has equal shapes and attributes of equal types."""
    assert module_kind(nn.Dropout(0.1)) != module_kind(nn.Dropout(0.2))
