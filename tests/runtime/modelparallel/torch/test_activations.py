# SPDX-License-Identifier: Apache-2.0
"""Checkpointed modules keep their inputs alone, and their gradients are exact."""

import pytest
import torch
from smp_nets import batch, gradients, loss_of, merged, net, outcome, plain_gradients, start
from torch import nn

import smdist.modelparallel.torch as smp
from smdist.modelparallel.torch.patches.checkpoint import checkpoint, checkpoint_sequential


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4)))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return {"logits": self.drop(self.layers(x))}


def saved_bytes(run):
    """Return the bytes that autograd saves in a call."""
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(kept.values())


@pytest.mark.parametrize("strategy", ["each", "contiguous", "group_2", "group_5"])
def test_a_sequence_keeps_less_and_has_the_same_gradients(strategy):
    plain, checkpointed = net(), net()
    smp.set_activation_checkpointing(checkpointed.layers, strategy=strategy)
    x, y = batch(64)

    expected = plain_gradients(plain, 1)
    found = plain_gradients(checkpointed, 1)
    kept = [saved_bytes(lambda m=m: loss_of(m, x, y)) for m in (plain, checkpointed)]

    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert kept[1] < kept[0]


def test_dropout_in_a_checkpoint_is_drawn_once():
    torch.manual_seed(0)
    model = Dropped()
    smp.set_activation_checkpointing(model.drop)

    logits = model(torch.ones(4, 8))["logits"]
    logits.sum().backward()

    assert torch.isfinite(logits).all()
    assert model.layers[3][0].bias.grad.abs().sum() > 0


def test_a_tuple_is_unpacked_or_passed_as_one():
    class Two(nn.Module):
        def forward(self, x):
            return x, x + 1

    class Add(nn.Module):
        def forward(self, *parts):
            return sum(parts[0] if len(parts) == 1 else parts)

    pair = nn.Sequential(Two(), Add())

    assert 3 == checkpoint_sequential(pair, torch.tensor(1.0), pack_args_as_tuple=False)
    assert 3 == checkpoint_sequential(pair, torch.tensor(1.0), pack_args_as_tuple=True)
    assert 2 == len(checkpoint(Two(), torch.tensor(1.0)))


@pytest.mark.parametrize(
    ("module", "options", "word"),
    [
        (nn.Linear(1, 1), {"strategy": "contiguous"}, "nn.Sequential"),
        (nn.Linear(1, 1), {"pack_args_as_tuple": True}, "nn.Sequential"),
        (nn.Sequential(), {"strategy": "some"}, "'some'"),
        (nn.Sequential(), {"strategy": "group_0"}, "'group_0'"),
    ],
)
def test_what_cannot_be_is_refused(module, options, word):
    kind, text = outcome(lambda: smp.set_activation_checkpointing(module, **options))

    assert "OptionError" == kind
    assert word in text


def split(rank, size, strategy):
    start(size)
    model = smp.DistributedModel(net())
    smp.set_activation_checkpointing(model.module.layers, strategy=strategy)
    for block in model.module.layers:
        smp.set_activation_checkpointing(block)

    @smp.step
    def train(model, x, y):
        loss = loss_of(model, x, y)
        model.backward(loss)

    assert train(model, *batch()) is None
    return gradients(model)


@pytest.mark.parametrize("strategy", ["each", "contiguous"])
def test_it_works_across_stages(world, strategy):
    expected = plain_gradients(net(), 4)

    found = merged(world.run(split, strategy, size=2))

    assert expected.keys() == found.keys()
    assert all(torch.allclose(expected[name], found[name], atol=1e-6) for name in expected)
