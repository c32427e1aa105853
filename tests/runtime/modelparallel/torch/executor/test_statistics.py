# SPDX-License-Identifier: Apache-2.0
"""What a module counts over microbatches is what the next stages read of it, microbatch by
microbatch."""

import torch
import zoo
from splitting import Pipeline, Split, merged, plain_step
from torch import nn

from smdist.modelparallel.torch.verification.compare import worst

PIPELINE = Pipeline(schedule="simple", num_microbatches=8)


class Counting(nn.Module):
    """Returns a buffer that it changes each time."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen += x.mean(0)
        return self.linear(x), self.seen


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, y, seen):
        return self.linear(self.norm(y)) * seen


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.counting, self.last = Counting(), Last()

    def forward(self, x):
        return self.last(*self.counting(x))


def test_each_microbatch_reads_its_own(world):
    expected = plain_step(specimen(), PIPELINE.num_microbatches)
    ran = merged(world.run(training, size=2, deadline=120))

    assert worst(expected.gradients, ran.gradients).error <= 1e-6
    assert worst(expected.buffers, ran.buffers).error <= 1e-6


def specimen():
    with zoo.specimen.seeded(0):
        return zoo.Specimen(model=Model(), batch=(torch.randn(32, 4),))


def training(rank, size):
    torch.set_num_threads(1)
    return Split(specimen(), PIPELINE).step()
