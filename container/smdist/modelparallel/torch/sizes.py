# SPDX-License-Identifier: Apache-2.0
"""Bytes as people write them, or an error that names the argument."""

from __future__ import annotations

from sagemaker_dist.contract.sizes import size_of
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.amounts import shown


def read_size(size: int | str, name: str) -> int:
    """Bytes of "16GiB", "16 GB" or a number; `name` is what an error calls it.

    Raises:
        OptionError: It is no size, or less than one byte.
    """
    number = size_of(size)
    if number is None:
        why = "it is a number of bytes, or text such as '16GiB' or '16 GB'"
        raise OptionError(f"{name} is {shown(size)}", why, "Pass one of these")
    return number
