# SPDX-License-Identifier: Apache-2.0
"""Sizes of panels and texts in inches, to find out which labels fit before they are drawn."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS_AN_INCH: Final = 72


def inches_of(axes: Axes) -> tuple[float, float]:
    """Return the width and the height of a panel, in inches."""
    from matplotlib.figure import Figure

    figure = axes.get_figure()
    assert isinstance(figure, Figure), "a panel belongs to one figure"
    box = axes.get_position()
    return box.width * figure.get_figwidth(), box.height * figure.get_figheight()


def inches_a_unit(axes: Axes) -> tuple[float, float]:
    """Return the lengths in inches of one unit of a panel's x axis, and of its y axis."""
    wide, high = inches_of(axes)
    left, right = axes.get_xlim()
    low, top = axes.get_ylim()
    return wide / abs(right - left), high / abs(top - low)


@lru_cache(maxsize=4096)
def width_of(text: str, size: float) -> float:
    """Return the width of a text in inches, with a font size in points."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, size=size).get_extents().width) / _POINTS_AN_INCH
