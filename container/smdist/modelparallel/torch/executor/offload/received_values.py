# SPDX-License-Identifier: Apache-2.0
"""Values that a stage receives, without a leaf of autograd's graph that keeps their memory.

The backward pass of a stage ends at leaves, in which autograd accumulates the gradients to send
back. A leaf that is the received value itself would stay on the device until then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Received(torch.autograd.Function):
    """Identity function of a value, whose gradient goes to another tensor of the same shape."""

    @staticmethod
    def forward(_leaf: Tensor, value: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save nothing: the gradient depends on no value."""

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def without_memory(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return a leaf for the gradient of a received value, and the value as a function of the leaf.

    The leaf has the shape and dtype of the value, and the memory of one element.

    Args:
        value: Received value, which requires no gradient.
    """
    element = torch.empty((), dtype=value.dtype, device=value.device)
    leaf = element.expand(value.shape).requires_grad_()
    result: Tensor = _Received.apply(leaf, value)  # type: ignore[no-untyped-call]
    return leaf, result
