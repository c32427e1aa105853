# SPDX-License-Identifier: Apache-2.0
"""Relative differences between the tensors of two runs.

A relative difference is the norm of the difference of two tensors, divided by the norm of the first
tensor.

Some gradients are zero except for rounding errors, such as the gradient of an attention's key bias.
A difference between rounding errors must not count. So the divisor has a minimum, which is computed
from all tensors of the first run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from smdist.modelparallel.torch.program.pytree import flatten

_FLOOR = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """Largest relative difference between the tensors of two runs.

    Attributes:
        error: Relative difference; infinite if a tensor is missing in one run, or if shapes or
            types differ.
        name: Name of the tensor that differs most; "" if nothing was compared.
    """

    error: float = 0.0
    name: str = ""


def worst(expected: Mapping[str, Tensor | None], found: Mapping[str, Tensor | None]) -> Worst:
    """Return the largest relative difference between the tensors of two runs.

    Args:
        expected: Tensors of the first run, by name; None for a missing gradient.
        found: Tensors of the second run, by name.
    """
    floor = _FLOOR * _typical([tensor for tensor in expected.values() if tensor is not None])
    errors = [
        Worst(error=_error(tensor, found.get(name), floor), name=name)
        for name, tensor in expected.items()
    ]
    return max(errors, key=lambda each: each.error, default=Worst())


def tensors_of(output: Any) -> dict[str, Tensor | None]:
    """Return the tensors in a nested output by name: "output 0", "output 1", by position."""
    leaves = flatten(output)[0]
    return {f"output {at}": leaf for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}


def _error(expected: Tensor | None, found: Tensor | None, floor: float) -> float:
    if expected is None or found is None:
        return 0.0 if expected is found else inf
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return inf
    if not expected.is_floating_point() and not expected.is_complex():
        return 0.0 if torch.equal(expected, found) else inf
    return _relative(expected, found, floor * sqrt(max(expected.numel(), 1)))


def _relative(expected: Tensor, found: Tensor, floor: float) -> float:
    if torch.equal(expected, found):
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    one, other = expected.detach().to(wide), found.detach().to(wide)
    is_same = (one == other) | (one.isnan() & other.isnan())
    difference = float(torch.where(is_same, torch.zeros_like(one), one - other).norm())
    scale = max(float(one[one.isfinite()].norm()), floor)
    return difference / scale if scale and difference == difference else (difference and inf)


def _typical(tensors: list[Tensor]) -> float:
    """Return the root mean square over all elements of all floating-point tensors together."""
    squares = sum(float(t.detach().double().square().nansum()) for t in tensors if _is_real(t))
    count = sum(t.numel() for t in tensors if _is_real(t))
    return sqrt(squares / count) if count and squares < inf else 0.0


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point()
