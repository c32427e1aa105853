# SPDX-License-Identifier: Apache-2.0
"""Units for the axes of a picture, and short forms of module names."""

from __future__ import annotations

from typing import Final

_TIMES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES: Final = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit (length, name) in which `seconds` is a number of 1 or more."""
    return next(((size, name) for size, name in _TIMES if seconds >= size), (1.0, "s"))


def size_unit(num_bytes: float) -> tuple[int, str]:
    """Return the unit (bytes, name) in which `num_bytes` is a number of 1 or more."""
    return next(((size, name) for size, name in _SIZES if num_bytes >= size), (1, "bytes"))


def shortened(name: str, room: int) -> str:
    """Shorten a module's name to at most `room` letters.

    Parents are dropped first, then letters at the start: model.blocks.11 -> blocks.11 -> 11;
    attention -> …ention.
    """
    fitting = next((each for each in endings(name) if len(each) <= room), None)
    if fitting is not None:
        return fitting
    return f"…{name[1 - room :]}" if room > 1 else ""


def endings(name: str) -> list[str]:
    """List a module's name without its first 0, 1, 2 … parents."""
    parts = name.split(".")
    return [".".join(parts[first:]) for first in range(len(parts))]
