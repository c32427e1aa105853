# SPDX-License-Identifier: Apache-2.0
"""GPT whose head costs as much as several layers, so that equal layers are an uneven cut."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, VOCABULARY = 384, 6, 8, 16384
LENGTH, MICROBATCHES = 128, 8  # each microbatch is one row


class Embedding(nn.Module):
    """Embedding of tokens and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.tokens(ids) + self.positions.weight
        return found


class Block(nn.Module):
    """Transformer block: attention to earlier tokens, then two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.next_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        parts = self.qkv(self.norm(x)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        grown: Tensor = x + self.narrow(functional.gelu(self.wide(self.next_norm(x))))
        return grown


class Head(nn.Module):
    """Output layer that computes the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.logits = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.logits(self.norm(x))
        return found


def gpt() -> nn.Sequential:
    """Return the model, with the same weights every time."""
    torch.manual_seed(0)
    return nn.Sequential(Embedding(), *[Block() for _ in range(LAYERS)], Head())


def stage(layers: tuple[int, int], number: int) -> nn.Sequential:
    """Return one of two stages with this many layers, cut by hand."""
    model, border = gpt(), 1 + layers[0]
    return model[:border] if number == 0 else model[border:]


@cache
def batch() -> tuple[Tensor, Tensor]:
    """Return token ids and the next tokens: MICROBATCHES rows of LENGTH."""
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(VOCABULARY, (MICROBATCHES, LENGTH + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy, the loss of every contender."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
