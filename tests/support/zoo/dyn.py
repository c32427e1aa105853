# SPDX-License-Identifier: Apache-2.0
"""Model whose blocks branch on their input, so that only a run shows the path."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .specimen import Specimen


class Deciding(nn.Module):
    """Block that runs one of two layers, by the sign of its input."""

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
    """Block without branches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(torch.relu(self.wide(self.norm(x))))


class Dynamic(nn.Module):
    """Model of branching and plain blocks, alternating."""

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
    """Return a specimen whose model takes its argument by position and returns a tensor."""
    return Specimen(model=Dynamic(width, depth, dropout), batch=(torch.randn(rows, 8),))
