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
    """Return the bytes of "16GiB", "16 GB" or an int; None for other values and beyond 1 to
    `MOST_BYTES`.

    "Gb" would mean gigabits, so it is not a size.
    """
    number = size if type(size) is int else 0
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found and not (found["unit"][1:] == "b" and found["unit"][0].isupper()):
        unit = _UNITS.get(found["unit"].lower(), 0)
        number = int(min(float(found["number"]) * unit, MOST_BYTES + 1))
    return number if 1 <= number <= MOST_BYTES else None
