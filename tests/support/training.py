# SPDX-License-Identifier: Apache-2.0
"""Small training, split over ranks or run by one process alone."""

import torch
from torch import nn

STEPS, ROWS, WIDTH = 4, 12, 16


def net():
    """Return the model, with the same weights in every process."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)]
    return nn.Sequential(*layers)


def batches(steps=STEPS):
    """Return the batches of all ranks together."""
    return torch.randn(steps, ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def loss_of(outputs):
    """Return a mean over rows, so that the mean over ranks is the mean over the whole batch."""
    return outputs.square().mean()


def sgd(model, rate=0.1):
    """Return SGD with momentum, which carries a wrong gradient of any step to the last weights."""
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def train(model, rank=0, size=1, optimizer=None):
    """Train a few steps on this rank's rows of each batch."""
    optimizer = optimizer or sgd(model)
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model(batch[rank::size])).backward()
        optimizer.step()
    return model


def weights(model):
    """Return the weights, detached and in order."""
    return [parameter.detach() for parameter in model.parameters()]


def alone():
    """Return the weights that one process trains."""
    return weights(train(net()))


def are_close(expected, actual, atol=1e-6):
    """Return whether lists of tensors are equal within the rounding of reordered additions."""
    return all(torch.allclose(a, b, atol=atol) for a, b in zip(expected, actual, strict=True))
