# SPDX-License-Identifier: Apache-2.0
"""Small GPT over characters, in plain PyTorch; nothing in it refers to pipeline stages."""

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, LENGTH, CHARACTERS = 96, 4, 4, 64, 128


class Block(nn.Module):
    """Transformer block: causal self-attention, then two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        rows, length, _ = x.shape
        parts = self.qkv(self.norm_1(x)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.mlp(self.norm_2(x))


class CharacterGPT(nn.Module):
    """GPT: input [batch, length] of characters below 128, output [batch, length, 128] logits."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CHARACTERS, bias=False)
        self.head.weight = self.characters.weight  # tied weights
        for embedding in (self.characters, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.characters(ids) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build() -> CharacterGPT:
    """Return the model, with the same weights every time."""
    torch.manual_seed(0)
    return CharacterGPT()


def loss_of(logits, targets):
    """Return the mean cross entropy per character, in nats."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
