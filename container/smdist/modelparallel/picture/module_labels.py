# SPDX-License-Identifier: Apache-2.0
"""Short forms of module names, for labels in a picture."""

from __future__ import annotations


def shortened(name: str, length: int) -> str:
    """Shorten a module's name to at most `length` letters.

    Names of parent modules are removed first: model.blocks.11 becomes blocks.11 or 11. If this is
    not enough, letters at the start are removed: attention becomes …ention.
    """
    fitting = next((each for each in endings(name) if len(each) <= length), None)
    if fitting is not None:
        return fitting
    return f"…{name[1 - length :]}" if length > 1 else ""


def endings(name: str) -> list[str]:
    """Return a module's name without its first 0, 1, 2, ... parents."""
    parts = name.split(".")
    return [".".join(parts[first:]) for first in range(len(parts))]
