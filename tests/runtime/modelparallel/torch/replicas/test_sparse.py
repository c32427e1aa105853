# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients: they add up over steps and are clipped, as dense ones do."""

import copy

import pytest
import torch
from replicated import Pipeline, Replicated, furthest
from torch import nn
from zoo import Specimen

IDS = torch.arange(16).view(8, 2) % 7


def specimen():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3))
    return Specimen(model=model, batch=(IDS,))


def twice_then_clipped(rank, size):
    """Two steps that add up, clipped; how far that is from one process, and layouts in it."""
    torch.set_num_threads(1)
    mine = Replicated(specimen(), Pipeline(num_microbatches=2), size)
    once = copy.deepcopy(one_step(mine))
    twice = one_step(mine)
    doubled = furthest({name: 2 * each for name, each in once.items()}, twice)
    norm = torch.nn.utils.clip_grad_norm_(mine.replicas.parameters.values(), 1e-2)
    scale = 1e-2 / (norm.item() + 1e-6)
    clipped = furthest({name: scale * each for name, each in twice.items()}, dense(mine))
    layouts = {str(p.grad.layout) for p in mine.replicas.parameters.values()}
    return doubled, clipped, norm.item(), sorted(layouts)


def one_step(mine):
    mine.step()
    return dense(mine)


def dense(mine):
    return {name: p.grad.to_dense().clone() for name, p in mine.replicas.parameters.items()}


@pytest.mark.parametrize(("size", "layouts"), [(2, ["torch.sparse_coo"]), (4, ["torch.strided"])])
def test_sparse_gradients_add_up_and_are_clipped(world, size, layouts):
    """They stay sparse where there is one replica."""
    found = world.run(twice_then_clipped, size=size, deadline=30)

    assert layouts == found[0][3]
    assert 1 == len({norm for _, _, norm, _ in found})
    for (error, name), (rest, also), norm, _ in found:
        assert error < 1e-6, name
        assert rest < 1e-6, also
        assert norm > 1e-2
