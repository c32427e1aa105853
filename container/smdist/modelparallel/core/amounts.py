# SPDX-License-Identifier: Apache-2.0
"""Numbers that people pass for hardware and memory: what is none of them is refused by name."""

from __future__ import annotations

from math import inf
from typing import Final

from sagemaker_dist.errors import require

MOST_BYTES: Final = 1 << 60  # of one rank: a slip of units is beyond it, no machine is
_MOST_INTEGER: Final = 10**300  # one that is as good as a float


def require_amount(
    what: str, number: object, *, why: str, least: float = 0.0, most: float = inf
) -> None:
    """Refuse what is no number from `least` to `most`, both included.

    Raises:
        OptionError: It is none.
    """
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    is_number = is_number and not (isinstance(number, int) and abs(number) > _MOST_INTEGER)
    limit = f" to {most:g}" if most < inf else " on"
    require(
        is_number and least <= number <= most,  # type: ignore[operator]
        what=f"{what} is {shown(number)}",
        why=why,
        mend=f"Pass a number from {least:g}{limit}",
    )


def require_bytes(what: str, number: object) -> None:
    """Refuse what is no whole number of bytes that a rank can have.

    Raises:
        OptionError: It is none.
    """
    is_count = isinstance(number, int) and not isinstance(number, bool)
    require(
        is_count and 1 <= number <= MOST_BYTES,  # type: ignore[operator]
        what=f"{what} is {shown(number)}",
        why="it is a whole number of bytes",
        mend=f"Pass an integer from 1 to {MOST_BYTES:,}, such as 16 * 2**30 for 16 GiB",
    )


def shown(value: object) -> str:
    """A value for an error's text, however long it is."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "an integer of more than 40 digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
