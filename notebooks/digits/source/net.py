# SPDX-License-Identifier: Apache-2.0
"""Small convolutional network for 8x8 pictures of digits."""

from torch import nn


def build() -> nn.Module:
    """Return the network, with input [batch, 1, 8, 8] and output [batch, 10] logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.GELU(),
        nn.Linear(64, 10),
    )
