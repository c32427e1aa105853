# SPDX-License-Identifier: Apache-2.0
"""Adasum: a sum that does not grow where gradients of ranks point into the same direction.

Two vectors a and b become (1 - ab / 2aa) a + (1 - ab / 2bb) b: their sum if they are orthogonal,
their average if they are equal. Ranks are combined in pairs, the pairs in pairs, and so on.
Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020.
"""

from __future__ import annotations

import torch

from sagemaker_dist.errors import require


def check_world(size: int) -> None:
    """Check that the number of ranks is a power of two.

    Raises:
        OptionError: It is not.
    """
    require(
        size & (size - 1) == 0,
        what=f"op is Adasum with {size} ranks",
        why="ranks are combined in pairs, so their number must be a power of two",
        hint="Use 2, 4, 8, ... ranks, or op=Average",
        about="op",
    )


def combined(rows: list[torch.Tensor]) -> torch.Tensor:
    """Return the adaptive sum of vectors of floats, one for each rank.

    Vectors of float64 are added in float64, others in float32; products are added in float64, so
    that those of tiny gradients do not become zero.
    """
    dtype = rows[0].dtype
    level = [row.double() if dtype is torch.float64 else row.float() for row in rows]
    while len(level) > 1:
        level = [_pair(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0].to(dtype)


def _pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    wide_a, wide_b = a.double(), b.double()
    dot = torch.dot(wide_a, wide_b)
    aa, bb = torch.dot(wide_a, wide_a), torch.dot(wide_b, wide_b)
    of_a = 1.0 - torch.where(aa > 0, dot / (2 * aa), torch.zeros_like(dot))
    of_b = 1.0 - torch.where(bb > 0, dot / (2 * bb), torch.zeros_like(dot))
    return of_a * a + of_b * b
