# SPDX-License-Identifier: Apache-2.0
"""Reduce operations under Horovod's names, and the factors that are applied around them."""

from __future__ import annotations

import warnings
from enum import Enum
from typing import Any, Final

import torch
import torch.distributed as dist

from sagemaker_dist.errors import OptionError, require


class HorovodOp(Enum):
    """Reduce operation: Average, Sum, Adasum, Min, Max or Product."""

    AVERAGE = "average"
    SUM = "sum"
    ADASUM = "adasum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"


Average: Final = HorovodOp.AVERAGE
Sum: Final = HorovodOp.SUM
Adasum: Final = HorovodOp.ADASUM
Min: Final = HorovodOp.MIN
Max: Final = HorovodOp.MAX
Product: Final = HorovodOp.PRODUCT

LINEAR: Final = (Average, Sum)  # a rank can leave by contributing zeros
_OF_ENGINE: Final = {
    Average: dist.ReduceOp.AVG,
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}


def as_reduction(op: Any, average: bool | None = None) -> HorovodOp:
    """Return the reduction of the arguments `op` and `average`; by default Average.

    Args:
        op: A constant of this module, or None.
        average: Deprecated form of `op`: True for Average, False for Sum, None for neither.

    Raises:
        OptionError: Both are given, or `op` is no reduce operation.
    """
    if average is not None:
        require(
            op is None,
            what=f"both op={op!r} and average={average!r} were passed",
            why="both name the reduce operation",
            hint="Pass only op",
            about="average",
            kind="conflict",
        )
        warnings.warn(
            "the argument average is deprecated; pass op=Average or op=Sum",
            DeprecationWarning,
            stacklevel=3,
        )
        return Average if average else Sum
    if op is None:
        return Average
    if isinstance(op, HorovodOp):
        return op
    raise OptionError(
        f"op is {op!r}",
        "there is no such reduce operation",
        "Pass Average, Sum, Adasum, Min, Max or Product of this module",
        about="op",
        kind="unknown",
    )


def engine_op(reduction: HorovodOp, dtype: torch.dtype) -> Any:
    """Return torch's ReduceOp for a reduction of tensors of this dtype.

    Whole numbers are summed for an average; finish() then divides the sum.
    """
    if reduction is Average and not is_fraction(dtype):
        return dist.ReduceOp.SUM
    return _OF_ENGINE[reduction]


def is_fraction(dtype: torch.dtype) -> bool:
    """Return True for floats and complex numbers, False for integers and bool."""
    return dtype.is_floating_point or dtype.is_complex


def divided(total: torch.Tensor, size: int) -> torch.Tensor:
    """Return the sums of whole numbers divided by `size`, rounded towards zero as in Horovod."""
    return total.div_(size, rounding_mode="trunc")


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Return the tensor times `factor`, in its own dtype.

    Integers are multiplied in float64 and rounded towards zero, 16-bit floats in float32.

    Raises:
        OptionError: The tensor is of bool.
    """
    if factor == 1.0:
        return tensor
    require(
        tensor.dtype is not torch.bool,
        what=f"a tensor of bool is multiplied by {factor!r}",
        why="a truth value has no multiple",
        hint="Leave prescale_factor and postscale_factor out",
        about="prescale_factor",
    )
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return (tensor.float() * factor).to(tensor.dtype)
    if is_fraction(tensor.dtype):
        return tensor * torch.tensor(factor, dtype=tensor.dtype)
    return (tensor.double() * factor).to(tensor.dtype)
