# SPDX-License-Identifier: Apache-2.0
"""One sheet as one figure: stages and memory above, the step below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sagemaker_dist.errors import SetupError
from smdist.modelparallel.picture import colours
from smdist.modelparallel.picture.bars import draw_memory, draw_stages
from smdist.modelparallel.picture.sheet import Sheet
from smdist.modelparallel.picture.timeline import draw_timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH: Final = 13.0  # inches, as all of these
_BARS: Final = 3.1
_ROW: Final = 0.27
_LEAST, _MOST = 1.6, 11.0
_TOP, _BETWEEN, _BOTTOM = 0.95, 0.95, 0.55
_LEFT, _RIGHT, _MIDDLE = 0.75, 0.25, 0.75


def draw(sheet: Sheet) -> Figure:
    """Draw a plan.

    Raises:
        SetupError: There is no matplotlib.
    """
    made = figure_class()
    rows = min(_MOST, max(_LEAST, _ROW * sheet.num_ranks + 0.3))
    height = _TOP + _BARS + _BETWEEN + rows + _BOTTOM
    figure = made(figsize=(_WIDTH, height), dpi=110)
    half = (_WIDTH - _LEFT - _RIGHT - _MIDDLE) / 2
    above = (_BOTTOM + rows + _BETWEEN) / height
    size = (half / _WIDTH, _BARS / height)
    stages = figure.add_axes((_LEFT / _WIDTH, above, *size))
    memory = figure.add_axes(((_LEFT + half + _MIDDLE) / _WIDTH, above, *size))
    across = (_WIDTH - _LEFT - _RIGHT) / _WIDTH
    step = figure.add_axes((_LEFT / _WIDTH, _BOTTOM / height, across, rows / height))
    for axes in (stages, memory, step):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    left = _LEFT / _WIDTH
    figure.text(left, 1 - 0.3 / height, sheet.title, fontsize=13, weight="bold", va="center")
    place = 1 - 0.56 / height
    figure.text(left, place, sheet.subtitle, fontsize=9, color=colours.PALE, va="center")
    draw_stages(stages, sheet)
    draw_memory(memory, sheet)
    draw_timeline(step, sheet)
    return figure


def figure_class() -> type[Figure]:
    """Matplotlib's figure.

    Raises:
        SetupError: There is no matplotlib.
    """
    try:
        from matplotlib.figure import Figure  # not pyplot: no window, no state of its own
    except ImportError as error:
        raise SetupError(
            "a plan cannot be drawn",
            f"matplotlib is not installed here ({error})",
            "Run: pip install matplotlib, or install the runtime as sagemaker-dist-runtime[plot]",
        ) from error
    return Figure
