# SPDX-License-Identifier: Apache-2.0
"""Checks of numbers that users pass for hardware and memory."""

from __future__ import annotations

from math import inf
from typing import Final

from sagemaker_dist.errors import require

MOST_BYTES: Final = 1 << 60  # for one rank: a larger number has the wrong unit
_MOST_INTEGER: Final = 10**300  # largest integer that is as good as a float


def require_amount(
    what: str, number: object, *, why: str, least: float = 0.0, most: float = inf
) -> None:
    """Raise OptionError unless `number` is a number from `least` to `most`, both included.

    Raises:
        OptionError: The value is not such a number.
    """
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    is_number = is_number and not (isinstance(number, int) and abs(number) > _MOST_INTEGER)
    limit = f" to {most:g}" if most < inf else " on"
    require(
        is_number and least <= number <= most,  # type: ignore[operator]
        what=f"{what} is {shown(number)}",
        why=why,
        hint=f"Pass a number from {least:g}{limit}",
    )


def require_bytes(what: str, number: object) -> None:
    """Raise OptionError unless `number` is a whole number of bytes that a rank can have.

    Raises:
        OptionError: The value is not such a number.
    """
    is_count = isinstance(number, int) and not isinstance(number, bool)
    require(
        is_count and 1 <= number <= MOST_BYTES,  # type: ignore[operator]
        what=f"{what} is {shown(number)}",
        why="it is a whole number of bytes",
        hint=f"Pass an integer from 1 to {MOST_BYTES:,}, such as 16 * 2**30 for 16 GiB",
    )


def shown(value: object) -> str:
    """Return the text of a value for an error, shortened if it is long."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "an integer of more than 40 digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
