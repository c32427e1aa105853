# SPDX-License-Identifier: Apache-2.0
"""Dropout on a part of a tensor that draws the numbers of the whole tensor.

Every rank draws the mask of the whole tensor, with the same seed, and uses its own part of it. So
the masks of all ranks together are that of one process, and all generators stay alike.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn


class SplitDraw:
    """Part of the random numbers of a whole tensor that belongs to this rank.

    Args:
        dim: Dimension along which the tensor is split.
        degree: Number of ranks over which it is split.
        rank: Number of this rank among them.
        length: Length of this dimension of the whole tensor; its parts differ by at most 1, and the
            first ones are longer. Default None: parts have equal lengths.
    """

    # without a dict, so that captures see no setting
    __slots__ = ("_degree", "_dim", "_length", "_rank")

    def __init__(self, dim: int, degree: int, rank: int, *, length: int | None = None) -> None:
        self._dim, self._degree, self._rank, self._length = dim, degree, rank, length

    def scales(self, part: Tensor, rate: float) -> Tensor:
        """Return the numbers by which dropout multiplies a part: 0 or 1 / (1 - rate).

        On a CPU, torch fills a mask in the order of memory; elsewhere a kernel of dropout draws it.

        Args:
            part: This rank's part of the tensor.
            rate: Probability of 0, below 1.
        """
        strides = part.stride()
        order = sorted(range(part.dim()), key=lambda dim: (-strides[dim], dim))
        shape = list(part.shape)
        shape[self._dim] = self._length or shape[self._dim] * self._degree
        in_memory = part.new_empty([shape[dim] for dim in order])
        whole = in_memory.permute([order.index(dim) for dim in range(part.dim())])
        if part.device.type in ("cpu", "meta"):
            found = whole.bernoulli_(1 - rate).div_(1 - rate)
        else:
            _, mask = torch.native_dropout(whole.fill_(1), rate, True)
            found = mask.to(part.dtype).div_(1 - rate)
        return found.tensor_split(self._degree, self._dim)[self._rank]


class _SplitDropout(nn.Module):
    _smp_draw: SplitDraw
    p: float
    inplace: bool

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's part of the result of dropout on the whole tensor."""
        return dropped(self._smp_draw, x, self.p, self.training, self.inplace)


def dropped(
    draw: SplitDraw, part: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Return this rank's part of dropout; the other arguments are those of torch's function."""
    if not training or not p:
        return part
    scales = draw.scales(part, p) if p < 1 else torch.zeros_like(part)
    return part.mul_(scales) if inplace else part * scales


_made: Final[dict[type[nn.Module], type[nn.Module]]] = {}


def is_dropout(module: nn.Module) -> bool:
    """Return True for a module whose forward function is that of `nn.Dropout`."""
    return isinstance(module, nn.Dropout) and type(module).forward is nn.Dropout.forward


def turn_dropout(module: nn.Module, draw: SplitDraw) -> None:
    """Change a dropout in place, so that it draws the numbers of the whole tensor.

    Args:
        module: An `nn.Dropout` whose input is a part of a tensor.
        draw: This rank's part.
    """
    plain = type(module)
    if plain not in _made:
        name = f"Split{plain.__name__}"
        _made[plain] = type(name, (_SplitDropout, plain), {"__module__": __name__})
    module._smp_draw = draw  # type: ignore[assignment]
    module.__class__ = _made[plain]
