# SPDX-License-Identifier: Apache-2.0
"""What an all-reduce makes of the ranks' tensors, in SMDDP's and in Horovod's names."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from sagemaker_dist.errors import OptionError, closest, require


class ReduceOp(str, Enum):
    """AVERAGE for floats only; the others for every number."""

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


def as_op(op: Any) -> ReduceOp:
    """The operation that is meant; None is AVERAGE, and its name in small letters is enough.

    Raises:
        OptionError: There is no such operation.
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
    )


def check_number(op: ReduceOp, dtype: Any) -> None:
    """Refuse an average of what is no float.

    Raises:
        OptionError: It is one.
    """
    require(
        op is not ReduceOp.AVERAGE or dtype.is_floating,
        what=f"an average of {dtype.name}",
        why="it would be rounded to a whole number",
        mend="Cast the tensor to float32, or pass op=ReduceOp.SUM",
    )
