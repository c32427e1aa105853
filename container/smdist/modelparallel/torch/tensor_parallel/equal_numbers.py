# SPDX-License-Identifier: Apache-2.0
"""Comparison of numbers that differ by rounding: tensors, and gradients of split parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from smdist.modelparallel.torch.tensor_splits import split_of


def largest(tensor: Tensor | None) -> float:
    """Return the largest number in a tensor; 0 without any."""
    if tensor is None or not tensor.numel():
        return 0.0
    if not tensor.is_floating_point():
        return float(tensor.abs().max())
    low, high = tensor.aminmax()  # without a copy of the tensor, which may have a billion bytes
    return float(torch.maximum(-low, high))


def is_close(one: Tensor, other: Tensor, tolerance: float, scale: float = 0.0) -> bool:
    """Return True if tensors differ by rounding, relative to the largest number or to `scale`."""
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    limit = tolerance * max(1e-6, largest(other), scale)
    return largest(one - other) <= limit


def is_same_gradient(
    whole: Tensor, parts: Sequence[Tensor], is_close: Callable[[Tensor, Tensor], bool]
) -> bool:
    """Return True if the parts of a parameter have the gradient of the whole one.

    A gradient may be 0 but for rounding, as that of the biases of keys in attention. So differences
    are relative to the largest gradient of all parameters.

    Args:
        whole: Parameter of the whole block.
        parts: The parameter on each rank.
        is_close: Comparison, relative to the largest gradient.
    """
    grads = [part.grad for part in parts]
    if whole.grad is None:
        return all(grad is None for grad in grads)
    given = [grad for grad in grads if grad is not None]
    if len(given) < len(grads):
        return False
    split = split_of(parts[0])
    if split is not None:
        return is_close(split.joined(given), whole.grad)
    return all(is_close(grad, whole.grad) for grad in given)


def is_sum_of_gradients(
    whole: Tensor, parts: Sequence[Tensor], is_close: Callable[[Tensor, Tensor], bool]
) -> bool:
    """Return True if the gradients of a whole parameter on all ranks sum up to that of the block.

    Args:
        whole: Parameter of the whole block.
        parts: The parameter on each rank.
        is_close: Comparison, relative to the largest gradient.
    """
    given = [part.grad for part in parts if part.grad is not None]
    if whole.grad is None or len(given) < len(parts) or split_of(parts[0]) is not None:
        return False
    return is_close(torch.stack(given).sum(0), whole.grad)
