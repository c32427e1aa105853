# SPDX-License-Identifier: Apache-2.0
"""Tensors of one dtype and device in one flat buffer, so that one operation carries all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from sagemaker_dist.errors import require

_MAX_SHOWN: Final = 8  # tensors of one call in an error


def by_kind(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Return positions of tensors with the same dtype and device, in the order of the first."""
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for position, tensor in enumerate(tensors):
        groups.setdefault((tensor.dtype, tensor.device), []).append(position)
    return list(groups.values())


def packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a new flat buffer with copies of all elements."""
    flat = [tensor.detach().reshape(-1) for tensor in tensors]
    return torch.cat(flat) if len(flat) > 1 else flat[0].clone()


def unpacked(buffer: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of the buffer with the shapes of `like`."""
    parts = buffer.split([tensor.numel() for tensor in like])  # type: ignore[no-untyped-call]
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def check_tensors(tensors: Sequence[torch.Tensor], function: str) -> None:
    """Check that all arguments are dense tensors, and that there is one at least.

    Raises:
        OptionError: An argument is no tensor, or is sparse, or there is none.
    """
    wrong = [each for each in tensors if not isinstance(each, torch.Tensor) or each.is_sparse]
    require(
        bool(tensors) and not wrong,
        what=f"{function}() was called with {_kind(wrong[0]) if wrong else 'an empty list'}",
        why="it takes dense tensors of torch",
        hint="Pass tensors; for sparse gradients there is sparse_allreduce_async()",
        about="tensor",
    )


def check_rows(tensors: Sequence[torch.Tensor], function: str) -> None:
    """Check that all arguments are dense tensors with rows, and that there is one at least.

    Raises:
        OptionError: An argument is no tensor, is sparse or has no dimension, or there is none.
    """
    check_tensors(tensors, function)
    require(
        all(each.dim() > 0 for each in tensors),
        what=f"{function}() was called with a tensor without dimensions",
        why="it divides or joins tensors along dimension 0",
        hint="Pass tensor.reshape(1)",
        about="tensor",
        kind="scalar",
    )


def row_signature(tensors: Sequence[torch.Tensor]) -> str:
    """Return the shapes without dimension 0, and the dtypes: equal on all ranks."""
    return " ".join(f"{tuple(each.shape[1:])}{each.dtype}" for each in tensors)


def row_elements(tensor: torch.Tensor) -> int:
    """Return the number of elements of a row."""
    return tensor[:0].numel() if tensor.dim() == 0 else tensor.shape[1:].numel()


def shown(tensors: Sequence[torch.Tensor]) -> str:
    """Return the shapes and dtypes for errors, such as "(2, 3) float32"."""
    dtypes = (str(each.dtype).removeprefix("torch.") for each in tensors[:_MAX_SHOWN])
    shapes = (str(tuple(each.shape)) for each in tensors[:_MAX_SHOWN])
    text = ", ".join(map(" ".join, zip(shapes, dtypes, strict=True)))
    left = len(tensors) - _MAX_SHOWN
    return f"{text} and {left} more" if left > 0 else text


def _kind(value: object) -> str:
    return "a sparse tensor" if isinstance(value, torch.Tensor) else repr(value)
