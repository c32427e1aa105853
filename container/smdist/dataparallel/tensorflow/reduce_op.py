# SPDX-License-Identifier: Apache-2.0
"""Reduce operations, with the names of SMDDP and Horovod, and checks of their dtypes."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from sagemaker_dist.errors import OptionError, closest, require
from smdist.dataparallel.tensorflow.op_library import tf


class ReduceOp(str, Enum):
    """Reduce operation of an all-reduce.

    An average of integers is rounded towards minus infinity. ADASUM accepts only floats.
    """

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    ADASUM = "adasum"


Average: Final = ReduceOp.AVERAGE
Sum: Final = ReduceOp.SUM
Min: Final = ReduceOp.MIN
Max: Final = ReduceOp.MAX
Product: Final = ReduceOp.PRODUCT
Adasum: Final = ReduceOp.ADASUM

_HALVES: Final = ("float16", "bfloat16")
_FLOATS: Final = (*_HALVES, "float32", "float64")
_NUMBERS: Final = (*_FLOATS, "int8", "uint8", "int16", "int32", "int64", "bool")
_NOT_MOVED: Final = ("string", "variant", "resource")


def as_op(op: Any) -> ReduceOp:
    """Return the ReduceOp for a ReduceOp or its name, such as "sum"; AVERAGE for None.

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
        "there is no such reduce operation",
        closest(str(op), [each.value for each in ReduceOp]),
        about="op",
        kind="unknown",
    )


def check_number(op: ReduceOp, dtype: Any) -> None:
    """Check that tensors of this dtype can be reduced with the operation.

    Raises:
        OptionError: The dtype cannot be reduced, or the operation is Adasum and the dtype is no
            float.
    """
    require(
        dtype.name in _NUMBERS,
        what=f"a tensor of dtype {dtype.name} cannot be reduced with op={op.value!r}",
        why=f"the supported dtypes are {', '.join(_NUMBERS)}",
        hint=_instead_of(dtype),
        about="tensor",
        kind="dtype",
    )
    check_fraction(op, dtype)


def check_fraction(op: ReduceOp, dtype: Any) -> None:
    """Check that Adasum gets floats, and that no truth values are averaged.

    Raises:
        OptionError: Adasum gets other numbers, or an average gets bool.
    """
    require(
        op is not ReduceOp.ADASUM or dtype.is_floating,
        what=f"a tensor of dtype {dtype.name} cannot be reduced with op={op.value!r}",
        why="Adasum multiplies each rank's tensor by a fraction",
        hint="Cast the tensor to float32, or pass op=ReduceOp.SUM",
        about="op",
        kind="rounding",
    )
    require(
        op is not ReduceOp.AVERAGE or not dtype.is_bool,
        what="a tensor of dtype bool cannot be averaged",
        why="the average of truth values is none",
        hint="Cast the tensor to float32, or pass op=ReduceOp.MIN or MAX",
        about="op",
        kind="rounding",
    )


def check_factor(factor: float, dtype: Any) -> None:
    """Check that no truth values are multiplied by a factor other than 1.

    Raises:
        OptionError: The factor is not 1, and the dtype is bool.
    """
    require(
        factor == 1 or not dtype.is_bool,
        what=f"a tensor of dtype {dtype.name} cannot be multiplied by the factor {factor!r}",
        why="a truth value has no multiple",
        hint="Leave prescale_factor and postscale_factor out",
        about="factor",
        kind="rounding",
    )


def engine_op(op: ReduceOp, dtype: Any) -> str:
    """Return the engine's name of the operation for tensors of this dtype.

    Whole numbers are summed for an average; finished() then divides the sum.
    """
    return ReduceOp.SUM.value if op is ReduceOp.AVERAGE and dtype.is_integer else op.value


def finished(total: Any, op: ReduceOp, size: int) -> Any:
    """Return the result of `op` over `size` ranks from what the engine has computed."""
    return total // size if op is ReduceOp.AVERAGE and total.dtype.is_integer else total


def times(tensor: Any, factor: float) -> Any:
    """Return the tensor times `factor`, in its own dtype.

    Integers are multiplied in float64, and the product is rounded towards zero. Floats of 16 bits
    are multiplied in float32, so that the factor is not rounded to 16 bits itself.
    """
    if factor == 1:
        return tensor
    wide = tf.float64 if tensor.dtype.is_integer else tensor.dtype
    if tensor.dtype.name in _HALVES:
        wide = tf.float32
    return tf.cast(tf.cast(tensor, wide) * tf.cast(factor, wide), tensor.dtype)


def check_gradient(op: ReduceOp, of: str) -> None:
    """Check that a reduction has a gradient: only sums and averages have one.

    Args:
        op: The reduce operation.
        of: The collective that reduces, such as "an all-reduce", for the error.

    Raises:
        OptionError: The operation is neither a sum nor an average.
    """
    require(
        op in (ReduceOp.SUM, ReduceOp.AVERAGE),
        what=f"{of} with op={op.value!r} has no gradient",
        why="smdist computes gradients only of averages and sums",
        hint="Reduce with average or sum, or wrap the result in tf.stop_gradient()",
        about="op",
        kind="no_gradient",
    )


def check_moved(dtype: Any) -> None:
    """Check that tensors of this dtype can be sent to other ranks.

    Raises:
        OptionError: The dtype is a string, a variant or a resource.
    """
    require(
        dtype.name not in _NOT_MOVED,
        what=f"a tensor of dtype {dtype.name} cannot be sent to other ranks",
        why="its elements have no fixed size",
        hint=_instead_of(dtype),
        about="tensor",
        kind="dtype",
    )


def _instead_of(dtype: Any) -> str:
    if dtype.name in _NOT_MOVED:
        return "Encode it as numbers, or use broadcast_object() or allgather_object()"
    if dtype.is_complex:
        return "Reduce tf.math.real() and tf.math.imag() of it separately"
    return "Cast the tensor to int64 or float32"
