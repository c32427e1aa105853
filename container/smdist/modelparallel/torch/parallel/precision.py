# SPDX-License-Identifier: Apache-2.0
"""Conversion of a model, of its inputs and outputs to the dtype in which it computes.

With `fp16=True` or `bf16=True` and without sharding, a model's parameters and buffers are in 16
bits. Its inputs are converted to 16 bits when it is called, and its outputs to float32, so that the
script computes losses in float32. With sharding, parameters and buffers that are in 16 bits become
float32, because their shards are the master weights, and FSDP2 converts parameters and inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.parallel.settings import Settings
from smdist.modelparallel.torch.program.pytree import map_leaves
from smdist.modelparallel.torch.session.current_model import wrapped_optimizer


def convert(model: nn.Module, settings: Settings) -> None:
    """Convert a model that computes in 16 bits to the dtype in which its parameters are stored.

    Without sharding, all floating-point parameters and buffers become 16-bit tensors. With
    sharding, those in 16 bits become float32, and others stay as they are.
    """
    if settings.converted_dtype is torch.float16:
        model.half()  # unlike to(), it leaves complex tensors as they are
    elif settings.converted_dtype is torch.bfloat16:
        model.bfloat16()
    elif settings.bf16 or settings.fp16:
        model._apply(_widened)  # type: ignore[no-untyped-call]


def _widened(tensor: Tensor) -> Tensor:
    """Return a 16-bit floating-point tensor in float32, and any other tensor as it is."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def inputs_of(data: Any, settings: Settings) -> Any:
    """Return nested arguments of the model with floating-point tensors in 16 bits.

    Without 16 bits, or with sharding, the result is `data` itself. A tensor that occurs twice in
    `data` occurs twice in the result.
    """
    dtype = settings.converted_dtype
    if dtype is None:
        return data
    return _converted(data, dtype, lambda leaf: leaf.is_floating_point())


def outputs_of(data: Any, settings: Settings) -> Any:
    """Return a nested output of the model with 16-bit tensors in float32.

    Without 16 bits, or with sharding, the result is `data` itself.
    """
    dtype = settings.converted_dtype
    if dtype is None:
        return data
    return _converted(data, torch.float32, lambda leaf: leaf.dtype is dtype)


def _converted(data: Any, dtype: torch.dtype, is_chosen: Any) -> Any:
    """Return nested data in which the chosen tensors have another dtype.

    Args:
        data: Nested data.
        dtype: Dtype of the chosen tensors in the result.
        is_chosen: Function of a tensor that returns True if the tensor is converted.
    """
    found: dict[int, Tensor] = {}

    def convert_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not is_chosen(leaf):
            return leaf
        if id(leaf) not in found:
            found[id(leaf)] = leaf.to(dtype)
        return found[id(leaf)]

    return map_leaves(convert_leaf, data)


def loss_scale() -> float:
    """Return the factor of a loss with float16: of the script's DistributedOptimizer, or else 1."""
    optimizer = wrapped_optimizer()
    return 1.0 if optimizer is None else float(optimizer.loss_scale)
