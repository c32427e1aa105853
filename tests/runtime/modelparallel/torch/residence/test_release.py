# SPDX-License-Identifier: Apache-2.0
"""Values of other ranks' stages are freed."""

import weakref

import torch
from tied import HALVES, IDS, tied
from torch import nn

from smdist.modelparallel.core.placement import place
from smdist.modelparallel.torch.capture import capture
from smdist.modelparallel.torch.materialization import release
from smdist.modelparallel.torch.materialization.stage_module import StageModule


def cut(model, example, stage_of, *own):
    captured = capture(model, example)
    placement = place(captured.graph, stage_of)
    return captured, {number: StageModule(captured, placement, number) for number in own}


def test_parameters_of_other_stages_are_gone_while_the_model_is_held():
    """Parameters of other stages and their gradients are freed; those of this rank stay."""
    model = tied()
    captured, stages = cut(model, IDS, HALVES, 1)
    model.layers[0].weight.grad = torch.ones(6, 6)
    gone = weakref.ref(model.layers[0].weight), weakref.ref(model.layers[0].weight.grad)
    kept = dict(stages[1].named_parameters())
    let_go = release(captured.model, stages)

    assert [None, None] == [ref() for ref in gone]
    assert model.layers[0].weight.is_meta
    assert (6, 6) == model.layers[0].weight.shape
    assert model.layers[2].weight is kept["layers.2.weight"]
    assert model.last.weight is model.first.weight is kept["last.weight"]
    assert not model.last.weight.is_meta
    assert 4 * (2 * (36 + 6) + 4 + 2) == let_go


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 3), nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.head(self.norm(self.rnn(x)[0][0]))


def test_modules_that_keep_their_parameters_twice_let_go_of_both():
    """An LSTM has a list of its own; buffers go too."""
    model = Recurrent()
    _, stages = cut(model, torch.ones(2, 2, 3), {"rnn": 0, "norm": 0, "head": 1}, 1)
    gone = weakref.ref(model.rnn.weight_ih_l0), weakref.ref(model.norm.running_mean)
    release(model, stages)

    assert [None, None] == [ref() for ref in gone]
    assert all(tensor.is_meta for tensor in model.rnn._flat_weights)
