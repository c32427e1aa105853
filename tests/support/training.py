# SPDX-License-Identifier: Apache-2.0
"""One small training, for ranks to share out and for one process to do alone."""

import torch
from torch import nn

STEPS, ROWS, WIDTH = 4, 12, 16


def net():
    """The same weights in every process."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)]
    return nn.Sequential(*layers)


def batches(steps=STEPS):
    """What all ranks together see."""
    return torch.randn(steps, ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def loss_of(outputs):
    """A mean over rows: the mean over ranks is the mean over the whole batch."""
    return outputs.square().mean()


def sgd(model, rate=0.1):
    """Momentum shows a wrong gradient of any step in the last weights."""
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def train(model, rank=0, size=1, optimizer=None):
    """A few steps on this rank's rows of each batch."""
    optimizer = optimizer or sgd(model)
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model(batch[rank::size])).backward()
        optimizer.step()
    return model


def weights(model):
    """Detached, in order."""
    return [parameter.detach() for parameter in model.parameters()]


def alone():
    """What one process trains."""
    return weights(train(net()))


def are_close(expected, actual, atol=1e-6):
    """Lists of tensors, equal within the rounding of another order of additions."""
    return all(torch.allclose(a, b, atol=atol) for a, b in zip(expected, actual, strict=True))
