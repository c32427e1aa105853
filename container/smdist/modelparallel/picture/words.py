# SPDX-License-Identifier: Apache-2.0
"""Units of axes, and names that fit into little room."""

from __future__ import annotations

from typing import Final

_TIMES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES: Final = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which this time is a number from 1 to 1,000."""
    return next(((size, name) for size, name in _TIMES if seconds >= size), (1.0, "s"))


def size_unit(num_bytes: float) -> tuple[int, str]:
    """The unit in which this many bytes are a number from 1 to 1,024."""
    return next(((size, name) for size, name in _SIZES if num_bytes >= size), (1, "bytes"))


def shortened(name: str, room: int) -> str:
    """A module's name in so many letters: without what is around it, and its end before its start.

    model.blocks.11 -> blocks.11 -> 11; attention -> …ention
    """
    fitting = next((each for each in endings(name) if len(each) <= room), None)
    if fitting is not None:
        return fitting
    return f"…{name[1 - room :]}" if room > 1 else ""


def endings(name: str) -> list[str]:
    """A module's name, with less and less of what is around it."""
    parts = name.split(".")
    return [".".join(parts[first:]) for first in range(len(parts))]
