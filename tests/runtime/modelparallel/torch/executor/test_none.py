# SPDX-License-Identifier: Apache-2.0
"""What has no gradient in one process has none over several: None, not zeros."""

import pytest
import torch
import zoo
from splitting import Pipeline, Split, merged, plain_step
from torch import nn

from smdist.modelparallel.torch.verification.compare import worst

PIPELINES = (Pipeline(schedule="1f1b"), Pipeline(schedule="zero_bubble"))


class Model(nn.Module):
    """One branch is computed on the first stage, sent, and not used there."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last = Last()

    def forward(self, x):
        return self.last(self.used(x), self.unused(x))


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.idle = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, used, unused):
        return self.linear(used) + unused.detach()


def test_gradients_that_do_not_exist_are_none(world):
    expected = plain_step(specimen(), 4)
    found = world.run(training, size=2, deadline=120)

    for number in range(len(PIPELINES)):
        ran = merged([rank[number] for rank in found])

        assert expected.gradients["unused.weight"] is None
        assert ran.gradients["unused.weight"] is None
        assert set(expected.gradients) - {"last.idle.weight", "last.idle.bias"} == set(
            ran.gradients
        )
        assert worst(expected.gradients, ran.gradients).error <= 1e-6


@pytest.mark.parametrize("backward", [True, False])
def test_evaluation_leaves_no_gradients(world, backward):
    """With the training's schedule or with forward passes alone; and training goes on after it."""
    expected = plain_step(specimen(), 4)
    found = world.run(evaluating, backward, size=2, deadline=120)

    for losses, gradients, held, _ in found:
        assert {None} == set(gradients.values())
        assert 0 == held
        if losses is not None:
            assert [a.item() for a in expected.losses] == [a.item() for a in losses]
    ran = merged([trained for _, _, _, trained in found])

    assert worst(expected.gradients, ran.gradients).error <= 1e-6


def specimen():
    with zoo.specimen.seeded(0):
        return zoo.Specimen(model=Model(), batch=(torch.randn(8, 4),))


def training(rank, size):
    torch.set_num_threads(1)
    return [Split(specimen(), pipeline).step() for pipeline in PIPELINES]


def evaluating(rank, size, backward):
    torch.set_num_threads(1)
    split = Split(specimen(), PIPELINES[0])
    feed = split.feed()

    def without_roots(microbatch, call):
        return feed(microbatch, call)[0], []

    losses = split.executor.run(without_roots, draws=split.draws, backward=backward)
    gradients = {name: parameter.grad for name, parameter in split.parameters()}
    held = split.executor.memory.held.now
    return losses, gradients, held, split.step()
