# SPDX-License-Identifier: Apache-2.0
"""Colours that look different with colour blindness, too (Okabe and Ito, 2008)."""

from __future__ import annotations

from typing import Final

from smdist.modelparallel.core.schedule.actions import Do

INK: Final = "#222222"
PALE: Final = "#888888"
LIMIT: Final = "#D55E00"
UNITS: Final = (
    "#56B4E9",
    "#A9D8F3",
)  # two shades in turn, so that neighbour units look different
BETWEEN: Final = "#BBBBBB"
LARGEST: Final = "#E69F00"
STATE: Final = "#0072B2"
ACTIVATIONS: Final = "#56B4E9"
RECEIVED: Final = "#009E73"
WORKSPACE: Final = "#CC79A7"
REDUCE: Final = "#999999"
ACTIONS: Final = {Do.F: "#56B4E9", Do.B: "#E69F00", Do.I: "#D55E00", Do.W: "#009E73"}
_TOWARDS: Final = 0.62  # fraction of white in the colour of a rank's last stage


def tinted(colour: str, part: float) -> tuple[float, float, float]:
    """Return a colour mixed with white, as red, green and blue from 0 to 1.

    Args:
        colour: Colour in hexadecimal form, such as "#0072B2".
        part: Part of white: 0 for the colour itself, 1 for the palest tint.
    """
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (value + (1 - value) * _TOWARDS * part for value in rgb)
    return red, green, blue
