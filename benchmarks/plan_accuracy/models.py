# SPDX-License-Identifier: Apache-2.0
"""Four small models, with a batch of one replica for each, and the layouts that are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from smdist.modelparallel.core.layout import Layout

BATCH: Final = 8  # samples of one replica
_LENGTH: Final = 64


class Dense(nn.Module):
    """Residual block of two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.second(nn.functional.gelu(self.first(self.norm(x))))
        return found


class Attending(nn.Module):
    """Transformer block with attention of four heads to all positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.dense = nn.Linear(width, width), Dense(width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(rows, length, 3, 4, width // 4)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        found: Tensor = self.dense(x + self.out(mixed.transpose(1, 2).reshape(rows, length, width)))
        return found


def _dense(width: int, depth: int) -> nn.Sequential:
    return nn.Sequential(*(Dense(width) for _ in range(depth)))


def _attending(width: int, depth: int, classes: int) -> nn.Sequential:
    blocks = [Attending(width) for _ in range(depth)]
    return nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, classes))


# name, model, width of its input
MODELS: Final[dict[str, tuple[Callable[[], nn.Sequential], int]]] = {
    "wide": (lambda: _dense(768, 4), 768),
    "deep": (lambda: _dense(384, 12), 384),
    "transformer": (lambda: _attending(384, 5, 384), 384),
    "large head": (lambda: _attending(384, 3, 8192), 384),
}


def made(name: str) -> nn.Sequential:
    """Return a model, with the same weights every time."""
    torch.manual_seed(0)
    return MODELS[name][0]()


def batch(name: str) -> Tensor:
    """Return the batch of one replica, of shape (BATCH, length, width)."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, _LENGTH, MODELS[name][1], generator=generator)


def loss_of(output: Tensor) -> Tensor:
    """Return the loss, the mean square."""
    return output.square().mean()


def _two(microbatches: int, **options: object) -> Layout:
    fields = {"data": 2, "num_microbatches": microbatches, "microbatch": BATCH // microbatches}
    if options.get("sharding"):
        fields["shard_degree"] = 2
    return Layout(**{**fields, **options})  # type: ignore[arg-type]


# The first three are the sample.
LAYOUTS: Final = (
    _two(1),
    _two(4, data=1, pipeline=2),
    _two(2, sharding="full", reduction="microbatch"),
    _two(2, sharding="optimizer"),
    _two(2, sharding="full"),
    _two(1, sharding="full", checkpointing="full"),
)
