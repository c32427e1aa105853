# SPDX-License-Identifier: Apache-2.0
"""Parser for sizes in bytes such as "16GiB"."""

from __future__ import annotations

import re
from typing import Final

MOST_BYTES: Final = 1 << 60  # more than any machine has: a larger size is a wrong unit
_SIZE: Final = re.compile(r"\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]*)\s*")
_UNITS: Final = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def size_in_bytes(size: object) -> int | None:
    """Return a size in bytes: of a text such as "16GiB" or "16 GB", or of an int.

    Returns None for any other value, and for sizes below 1 or above `MOST_BYTES`. A text such as
    "16Gb" is not a size either, because "Gb" would mean gigabits.
    """
    number = size if type(size) is int else 0
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found and not (found["unit"][1:] == "b" and found["unit"][0].isupper()):
        unit = _UNITS.get(found["unit"].lower(), 0)
        number = int(min(float(found["number"]) * unit, MOST_BYTES + 1))
    return number if 1 <= number <= MOST_BYTES else None
