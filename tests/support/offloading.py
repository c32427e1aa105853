# SPDX-License-Identifier: Apache-2.0
"""Models whose activations are larger than their weights, and steps with and without offload."""

from __future__ import annotations

from typing import Any

import accelerator
import torch
import zoo
from splitting import Pipeline, Split
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from smdist.modelparallel.torch.executor.offload import ActivationOffload

ROWS, WIDTH = 512, 32
ACTIVATION_BYTES = ROWS * WIDTH * 4  # of one tensor of a microbatch


class Block(nn.Module):
    """Layer that saves its input twice, views of one product, a result and a mask."""

    def __init__(self, *, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.both = nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        if self.is_checkpointed and self.training:
            return checkpoint(self.compute, x, use_reentrant=False)
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        left, right = self.both(self.norm(x)).chunk(2, dim=-1)
        return x + self.out(left.tanh() * right.relu())


class Chain(nn.Module):
    """Linear layers and tanh, each of which saves one tensor."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)]
        self.layers = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def blocks(layers: int, **options: Any) -> nn.Module:
    """Return blocks with the same weights every time, on the device."""
    return _seeded(lambda: nn.Sequential(*(Block(**options) for _ in range(layers))))


def chain(layers: int) -> nn.Module:
    """Return a chain with the same weights every time, on the device."""
    return _seeded(lambda: Chain(layers))


def _seeded(make: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[], device_type="cpu"):
        torch.manual_seed(0)
        return make().to(accelerator.NAME)


def batch(microbatches: int) -> Tensor:
    """Return the batch on the device."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS * microbatches, WIDTH, generator=generator).to(accelerator.NAME)


def loss_of(output: Tensor) -> Tensor:
    """Return a loss that saves the output."""
    return output.square().mean()


def split(model: nn.Module, pipeline: Pipeline, horizon: int | None, group: Any = None) -> Split:
    """Return the model on the ranks of a group; without offload if the horizon is None."""
    specimen = zoo.Specimen(model=model, batch=(batch(pipeline.num_microbatches),))
    device = torch.device(accelerator.NAME, torch.accelerator.current_device_index())
    offload = None if horizon is None else ActivationOffload(device, horizon)
    return Split(specimen, pipeline, group, offload=offload)


def differing(one: Any, other: Any) -> list[str]:
    """Return the names of all gradients, and losses, that are not the same bit for bit."""
    names = [name for name, each in one.gradients.items() if not _same(each, other.gradients[name])]
    if one.losses is not None:
        names += [f"loss {n}" for n, x in enumerate(one.losses) if not _same(x, other.losses[n])]
    return names


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.cpu(), other.cpu()) and one.stride() == other.stride()
