# SPDX-License-Identifier: Apache-2.0
"""U-Net of diffusion models, with skip connections from the down path to the up path."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .specimen import Specimen


class Residual(nn.Module):
    """Residual block of two convolutions, with the time added between them."""

    def __init__(self, inputs: int, outputs: int, time: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.norm2 = nn.GroupNorm(4, outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x)))
        hidden = hidden + self.time(F.silu(time))[:, :, None, None]
        hidden = self.conv2(self.dropout(F.silu(self.norm2(hidden))))
        return self.skip(x) + hidden


class Attention(nn.Module):
    """Attention of every pixel to every other one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, width, height, breadth = x.shape
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(pixels).chunk(3, dim=-1)
        seen = self.out(F.scaled_dot_product_attention(q, k, v))
        return x + seen.transpose(1, 2).reshape(rows, width, height, breadth)


class UNet(nn.Module):
    """U-Net with two residual blocks a level and attention at the bottom; output is a picture."""

    def __init__(
        self, width: int, levels: tuple[int, ...] = (1, 2, 4), dropout: float = 0.0
    ) -> None:
        super().__init__()
        time = 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.conv_in = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.downsamplers = nn.ModuleList(), nn.ModuleList()
        self.up, self.upsamplers = nn.ModuleList(), nn.ModuleList()
        skips, now = [width], width
        for level, factor in enumerate(levels):
            for _ in range(2):
                self.down.append(Residual(now, factor * width, time, dropout))
                now = factor * width
                skips.append(now)
            if level < len(levels) - 1:
                self.downsamplers.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
                skips.append(now)
        self.middle = Residual(now, now, time, dropout)
        self.attention = Attention(now)
        for level, factor in reversed(list(enumerate(levels))):
            for _ in range(3):
                self.up.append(Residual(now + skips.pop(), factor * width, time, dropout))
                now = factor * width
            if level:
                self.upsamplers.append(nn.Conv2d(now, now, 3, padding=1))
        self.norm_out = nn.GroupNorm(4, now)
        self.conv_out = nn.Conv2d(now, 3, 3, padding=1)
        self.levels, self.width = len(levels), width

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        time = self.time(_waves(time, self.width).to(x.dtype))
        x = self.conv_in(x)
        skips = [x]
        for level in range(self.levels):
            for block in self.down[2 * level : 2 * level + 2]:
                x = block(x, time)
                skips.append(x)
            if level < self.levels - 1:
                x = self.downsamplers[level](x)
                skips.append(x)
        x = self.attention(self.middle(x, time))
        for level in range(self.levels):
            for block in self.up[3 * level : 3 * level + 3]:
                x = block(torch.cat([x, skips.pop()], dim=1), time)
            if level < self.levels - 1:
                x = self.upsamplers[level](F.interpolate(x, scale_factor=2.0))
        return self.conv_out(F.silu(self.norm_out(x)))


def _waves(time: Tensor, width: int) -> Tensor:
    rates = torch.exp(-torch.arange(width // 2, device=time.device) / (width // 2) * 9.2)
    angles = time[:, None] * rates[None]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def unet(rows: int, picture: int, width: int, *, dropout: float = 0.0) -> Specimen:
    """Return a specimen whose model takes its arguments by position and returns a tensor."""
    model = UNet(width, dropout=dropout)
    times = torch.randint(0, 1000, (rows,)).float()
    return Specimen(model=model, batch=(torch.randn(rows, 3, picture, picture), times))
