# SPDX-License-Identifier: Apache-2.0
"""A model whose blocks decide by what they see: nothing but running it says where it goes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .specimen import Specimen


class Deciding(nn.Module):
    """One of two layers, by the sign of what comes in."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.some = nn.Linear(width, width)
        self.other = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        layer = self.some if x.sum() > 0 else self.other
        return x + self.dropout(torch.tanh(layer(self.norm(x))))


class Plain(nn.Module):
    """A block that decides nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(torch.relu(self.wide(self.norm(x))))


class Dynamic(nn.Module):
    """Deciding and plain blocks by turns."""

    def __init__(self, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.blocks = nn.ModuleList(
            Plain(width) if i % 2 else Deciding(width, dropout) for i in range(depth)
        )
        self.last = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def dyn(rows: int, width: int, depth: int, *, dropout: float = 0.0) -> Specimen:
    """Returns a tensor; takes its argument by position."""
    return Specimen(model=Dynamic(width, depth, dropout), batch=(torch.randn(rows, 8),))
