# SPDX-License-Identifier: Apache-2.0
"""A copy of a model without values, which later batches are captured with."""

import threading
from dataclasses import replace

import pytest
import torch
import zoo
from torch import nn

from smdist.modelparallel.torch.capture import capture, shape_probe
from smdist.modelparallel.torch.materialization import skeleton
from smdist.modelparallel.torch.program.partition_marks import marks_of, set_partition

HARD = ("gpt2", "dyn", "mixtral", "resnet")


def shorter(batch):
    """Half of the rows."""
    if isinstance(batch, dict):
        return {key: value[:2] for key, value in batch.items()}
    return tuple(value[:2] for value in batch)


@pytest.mark.parametrize("name", HARD)
def test_capture_of_a_skeleton_is_that_of_the_model(name):
    """A skeleton is captured like the model, also with another batch and with probed units."""
    specimen = zoo.tiny(name)
    bare = skeleton(specimen.model)

    for batch in (specimen.batch, shorter(specimen.batch)):
        expected, found = capture(specimen.model, batch), capture(bare, batch)
        assert expected.graph == found.graph
        assert expected.key == found.key
    assert all(tensor.is_meta for tensor in [*bare.parameters(), *bare.buffers()])


def test_large_units_of_a_skeleton_are_tried_all_the_same(monkeypatch):
    """The model has been on this machine, and zeros that take no memory stand for its weights."""
    specimen = zoo.tiny("mixtral")
    monkeypatch.setattr(shape_probe, "LARGEST_BYTES", 1)
    bare = skeleton(specimen.model)
    expected = replace(capture(specimen.model, specimen.batch), model=bare)

    assert expected.graph == capture(bare, specimen.batch).graph


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        self.layers[1].weight = self.layers[0].weight
        self.again = [self.layers[0]]
        self.offset = torch.ones(2)
        self.lock = threading.Lock()
        self.hooks = []
        self.layers[0].register_forward_hook(self.note)
        self.layers[1].bias.is_special = True

    def note(self, *_):
        self.hooks.append("called")

    def forward(self, x):
        return self.layers[1](self.layers[0](x)) + self.offset


def test_all_but_values_is_kept():
    """Ties, hooks, marks, flags, and what cannot be copied."""
    model = Odd()
    set_partition(model.layers[1], 1)
    model.layers[1].eval()
    model.layers[0].bias.requires_grad_(False)
    bare = skeleton(model)

    assert bare.layers[0].weight is bare.layers[1].weight
    assert bare.again[0] is bare.layers[0]
    assert model.offset is bare.offset
    assert model.lock is bare.lock
    assert marks_of(model) == marks_of(bare)
    assert [True, False] == [layer.training for layer in bare.layers]
    assert [False, True] == [layer.bias.requires_grad for layer in bare.layers]
    assert bare.layers[1].bias.is_special
    assert bare.layers[0]._forward_hooks.values() != model.layers[0]._forward_hooks.values()
    bare.layers[0](torch.ones(1, 2, device="meta"))
    assert (["called"], []) == (bare.hooks, model.hooks)
