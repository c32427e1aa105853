# SPDX-License-Identifier: Apache-2.0
"""Bytes as people write them: 16GiB."""

from __future__ import annotations

import re
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.amounts import MOST_BYTES, shown

_SPELT: Final = re.compile(r"\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]*)\s*")
_UNITS: Final = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def read_size(size: int | str, name: str) -> int:
    """Bytes of "16GiB", "16 GB" or a number; `name` is what an error calls it.

    Raises:
        OptionError: It is no size, or less than one byte.
    """
    found = _SPELT.fullmatch(size) if isinstance(size, str) else None
    if found and found["unit"][1:] == "b":  # Gb, but not gb
        found = None if found["unit"][0].isupper() else found
    number = size if isinstance(size, int) and not isinstance(size, bool) else 0
    if found and found["unit"].lower() in _UNITS:
        number = _whole(float(found["number"]) * _UNITS[found["unit"].lower()])
    if not 1 <= number <= MOST_BYTES:
        why = "it is a number of bytes, or text such as '16GiB' or '16 GB'"
        raise OptionError(f"{name} is {shown(size)}", why, "Pass one of these")
    return number


def _whole(number: float) -> int:
    return int(number) if number <= MOST_BYTES else 0
