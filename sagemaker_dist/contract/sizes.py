# SPDX-License-Identifier: Apache-2.0
"""Bytes as people write them: 16GiB."""

from __future__ import annotations

import re
from typing import Final

MOST_BYTES: Final = 1 << 60  # of one rank: a slip of units is beyond it, no machine is
_SPELT: Final = re.compile(r"\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]*)\s*")
_UNITS: Final = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def size_of(size: object) -> int | None:
    """Bytes of "16GiB", "16 GB" or a number; None of what is no size of 1 to `MOST_BYTES`.

    Gb would be bits, and is none.
    """
    number = size if type(size) is int else 0
    found = _SPELT.fullmatch(size) if isinstance(size, str) else None
    if found and not (found["unit"][1:] == "b" and found["unit"][0].isupper()):
        unit = _UNITS.get(found["unit"].lower(), 0)
        number = int(min(float(found["number"]) * unit, MOST_BYTES + 1))
    return number if 1 <= number <= MOST_BYTES else None
