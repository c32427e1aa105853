# SPDX-License-Identifier: Apache-2.0
"""A small net and its training, which tests compare between one process and several ranks."""

from collections.abc import Iterator

import torch
from torch import nn

OPTIONS = {"lr": 0.1, "momentum": 0.9}


def net(width: int = 96) -> nn.Module:
    """Return three layers with the same values on every rank. width: outputs of the second one."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, width), nn.Tanh(), nn.Linear(width, 4)
    )


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of 16 samples, on the CPU."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 32, generator=generator), torch.randn(16, 4, generator=generator)


def shard_of_batch(rank: int, size: int, device: str) -> Iterator[torch.Tensor]:
    """Return a rank's samples of the batch, on a device."""
    return (part[rank::size].to(device) for part in batch())


def train(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[torch.Tensor]:
    """Train for three steps, and return the parameters. optimizer: by default SGD with OPTIONS."""
    steps = optimizer or torch.optim.SGD(model.parameters(), **OPTIONS)
    for _ in range(3):
        steps.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        steps.step()
    return [parameter.detach() for parameter in model.parameters()]
