# SPDX-License-Identifier: Apache-2.0
"""Checks of the numbers that users pass for hardware and memory."""

from __future__ import annotations

from math import inf
from typing import Final

from sagemaker_dist.errors import require

MOST_BYTES: Final = 1 << 60  # limit for one rank; a larger number surely has a wrong unit
_MOST_INTEGER: Final = 10**300  # a larger integer cannot be converted to a float


def require_amount(
    what: str,
    number: object,
    *,
    why: str,
    least: float = 0.0,
    most: float = inf,
    about: str = "",
) -> None:
    """Check that `number` is a number from `least` to `most`, both included.

    Args:
        what: Name of the number in the error.
        number: Value to check.
        why: Sentence in the error that says why such a number is needed.
        least: Smallest valid number.
        most: Largest valid number.
        about: Name of the user's option, to store in the error's `about`; "" for none.

    Raises:
        OptionError: The value is not such a number.
    """
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    is_number = is_number and not (isinstance(number, int) and abs(number) > _MOST_INTEGER)
    valid = f"from {least:g} to {most:g}" if most < inf else f"of at least {least:g}"
    require(
        is_number and least <= number <= most,  # type: ignore[operator]
        what=f"{what} is {shown(number)}",
        why=why,
        hint=f"Pass a number {valid}",
        about=(about,) if about else (),
    )


def require_bytes(what: str, number: object, *, about: str = "") -> None:
    """Check that a number of bytes is an integer from 1 to 2**60.

    Args:
        what: Name of the number in the error.
        number: Value to check.
        about: Name of the user's option, to store in the error's `about`; "" for none.

    Raises:
        OptionError: The value is not such a number.
    """
    is_count = isinstance(number, int) and not isinstance(number, bool)
    require(
        is_count and 1 <= number <= MOST_BYTES,  # type: ignore[operator]
        what=f"{what} is {shown(number)}",
        why="this option is a number of bytes",
        hint=f"Pass an integer from 1 to {MOST_BYTES:,}, such as 16 * 2**30 for 16 GiB",
        about=(about,) if about else (),
    )


def shown(value: object) -> str:
    """Return the repr of a value for an error, shortened to 60 characters."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "an integer with more than 40 digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
