# SPDX-License-Identifier: Apache-2.0
"""Drawing of a whole picture: a plan's bars above its timeline, or steps of a recorded run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sagemaker_dist.errors import SetupError
from smdist.modelparallel.picture import palette
from smdist.modelparallel.picture.bars import draw_memory, draw_stages
from smdist.modelparallel.picture.sheet import RunSheet, Sheet
from smdist.modelparallel.picture.timeline_panel import draw_step, draw_timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH: Final = 13.0  # width of the picture in inches; all lengths below are in inches
_BARS: Final = 3.1  # height of the bar charts
_ROW: Final = 0.27  # height of a rank's row in a timeline
_LEAST, _MOST = 1.6, 11.0
_TOP, _BETWEEN, _BOTTOM = 0.95, 0.95, 0.55
_LEFT, _RIGHT, _MIDDLE = 0.75, 0.25, 0.75


def draw(sheet: Sheet) -> Figure:
    """Return a matplotlib figure of a plan: stages and memory as bars, and the timeline of a step.

    Raises:
        SetupError: matplotlib is not installed.
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
        _style(axes)
    _write_titles(figure, sheet)
    draw_stages(stages, sheet)
    draw_memory(memory, sheet)
    draw_timeline(step, sheet)
    return figure


def draw_run(sheet: RunSheet) -> Figure:
    """Return a matplotlib figure of a recorded run: steps below each other on the same time axis.

    Raises:
        SetupError: matplotlib is not installed.
    """
    made = figure_class()
    rows = [min(_MOST, max(_LEAST, _ROW * panel.num_ranks + 0.3)) for panel in sheet.panels]
    height = _TOP + sum(rows) + _BETWEEN * (len(rows) - 1) + _BOTTOM
    figure = made(figsize=(_WIDTH, height), dpi=110)
    _write_titles(figure, sheet)
    across, top = (_WIDTH - _LEFT - _RIGHT) / _WIDTH, height - _TOP
    seconds = max(panel.end for panel in sheet.panels)
    for panel, tall in zip(sheet.panels, rows, strict=True):
        place = (_LEFT / _WIDTH, (top - tall) / height, across, tall / height)
        axes = figure.add_axes(place)
        _style(axes)
        draw_step(axes, panel, seconds=seconds)
        top -= tall + _BETWEEN
    return figure


def _style(axes: Axes) -> None:
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _write_titles(figure: Figure, sheet: Sheet | RunSheet) -> None:
    left, height = _LEFT / _WIDTH, figure.get_figheight()
    figure.text(left, 1 - 0.3 / height, sheet.title, fontsize=13, weight="bold", va="center")
    place = 1 - 0.56 / height
    figure.text(left, place, sheet.subtitle, fontsize=9, color=palette.PALE, va="center")


def figure_class() -> type[Figure]:
    """Return matplotlib's class Figure, imported now.

    Raises:
        SetupError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # pyplot would open windows and keep global state
    except ImportError as error:
        raise SetupError(
            "the plan cannot be drawn",
            f"matplotlib is not installed ({error})",
            "Run: pip install matplotlib, or install the runtime as sagemaker-dist-runtime[plot]",
        ) from error
    return Figure
