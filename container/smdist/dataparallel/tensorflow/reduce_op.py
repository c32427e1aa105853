# SPDX-License-Identifier: Apache-2.0
"""Reduce operations under SMDDP's and Horovod's names, and the dtypes that each accepts."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from sagemaker_dist.errors import OptionError, closest, require


class ReduceOp(str, Enum):
    """Reduce operation of an all-reduce; AVERAGE accepts floats only, the others every number."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"


Average: Final = ReduceOp.AVERAGE
Sum: Final = ReduceOp.SUM
Min: Final = ReduceOp.MIN
Max: Final = ReduceOp.MAX
Product: Final = ReduceOp.PRODUCT

_FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
_NUMBERS: Final = (*_FLOATS, "int8", "uint8", "int16", "int32", "int64", "bool")
_NOT_MOVED: Final = ("string", "variant", "resource")


def as_op(op: Any) -> ReduceOp:
    """Return the operation of this value or lower-case name; AVERAGE for None.

    Raises:
        OptionError: The operation does not exist.
    """
    if op is None:
        return ReduceOp.AVERAGE
    try:
        return ReduceOp(op)
    except ValueError:
        pass
    raise OptionError(
        f"op is {op!r}",
        "there is no such reduction",
        closest(str(op), [each.value for each in ReduceOp]),
        about="op",
    )


def check_number(op: ReduceOp, dtype: Any) -> None:
    """Refuse a dtype that cannot be reduced, and an average of integers.

    Raises:
        OptionError: The dtype does not fit the operation.
    """
    require(
        dtype.name in _NUMBERS,
        what=f"{dtype.name} for a reduction (op={op.value!r})",
        why=f"reduced are {', '.join(_NUMBERS)}",
        hint=_instead_of(dtype),
    )
    check_average(op, dtype)


def check_average(op: ReduceOp, dtype: Any) -> None:
    """Refuse an average of integers; complex values are allowed in IndexedSlices.

    Raises:
        OptionError: The operation is an average, and the dtype is neither float nor complex.
    """
    require(
        op is not ReduceOp.AVERAGE or dtype.is_floating or dtype.is_complex,
        what=f"an average of {dtype.name}",
        why="it would be rounded to a whole number",
        hint="Cast the tensor to float32, or pass op=ReduceOp.SUM",
    )


def check_factor(factor: float, dtype: Any) -> None:
    """Refuse a factor for integers; complex values are allowed in IndexedSlices.

    Raises:
        OptionError: The factor is not 1, and the dtype is neither float nor complex.
    """
    require(
        factor == 1 or dtype.is_floating or dtype.is_complex,
        what=f"a factor of {factor!r} for {dtype.name}",
        why="it would be rounded to a whole number, as would the product",
        hint="Cast the tensor to float32, or multiply by yourself",
    )


def check_gradient(op: ReduceOp, of: str) -> None:
    """Refuse the gradient of a reduction that does not tell which rank's value it returned.

    Args:
        of: The collective that reduces, such as "an all-reduce".

    Raises:
        OptionError: The operation is neither a sum nor an average.
    """
    require(
        op in (ReduceOp.SUM, ReduceOp.AVERAGE),
        what=f"a gradient of {of} with op={op.value!r}",
        why="which rank's value it was is not known",
        hint="Reduce with average or sum, or put tf.stop_gradient() around it",
    )


def check_moved(dtype: Any) -> None:
    """Refuse to move a dtype whose elements have no fixed size.

    Raises:
        OptionError: The dtype is a string, a variant or a resource.
    """
    require(
        dtype.name not in _NOT_MOVED,
        what=f"{dtype.name} to move between ranks",
        why="its elements have no fixed size",
        hint=_instead_of(dtype),
    )


def _instead_of(dtype: Any) -> str:
    if dtype.name in _NOT_MOVED:
        return "Encode it as numbers, or send objects: broadcast_object(), allgather_object()"
    if dtype.is_complex:
        return "Reduce tf.math.real() and tf.math.imag() of it, each alone"
    return "Cast the tensor to int64 or float32"
