# SPDX-License-Identifier: Apache-2.0
"""Drawing of one step's timeline: a row for each rank, a bar for each action."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Final

from smdist.modelparallel.core.plan.number_format import time_unit
from smdist.modelparallel.core.schedule.actions import Do
from smdist.modelparallel.picture import palette
from smdist.modelparallel.picture.page_layout import inches_of, width_of
from smdist.modelparallel.picture.sheet import Sheet, Span, StepSheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HIGH: Final = 0.84  # height of an action's bar; a row has height 1
_LOW: Final = 0.2  # height of a bar for a sum of gradients
_SMALL: Final = 7.0  # font size of labels in points
_SIZES: Final = (_SMALL, 6.0, 5.0, 4.5)  # font sizes of microbatch numbers in points
_MARGIN: Final = 0.03  # inches between a number and the ends of its bar
_INCHES_A_LINE: Final = 0.11  # smallest height of a row with numbers
_INCHES_AN_EDGE: Final = 0.04  # smallest width of a bar with a white edge
_MOST_NUMBERS: Final = 4000
_MOST_TICKS: Final = 32
_WORDS: Final = {
    Do.F: "F: forward",
    Do.B: "B: backward",
    Do.I: "I: gradients of inputs",
    Do.W: "W: gradients of weights",
}
_SUMS: Final = "sum of gradients"  # over replicas, or over the stages of a tied weight


def draw_timeline(axes: Axes, sheet: Sheet) -> None:
    """Draw the simulated step of a plan."""
    step = StepSheet(title="One step", num_ranks=sheet.num_ranks, spans=sheet.spans)
    draw_step(axes, step, seconds=step.end)


def draw_step(axes: Axes, sheet: StepSheet, *, seconds: float) -> None:
    """Draw the actions of a step, with ranks from top to bottom and time from left to right.

    Bars have microbatch numbers if these fit.

    Args:
        axes: Panel to draw into.
        sheet: Data of the step.
        seconds: Time from the left to the right end of the panel.
    """
    scale, unit = time_unit(seconds)
    axes.set_title(sheet.title, loc="left", fontsize=10)
    axes.set_xlabel(unit)
    axes.set_ylabel("rank")
    axes.set_xlim(0, max(seconds / scale, 1e-12))
    axes.set_ylim(sheet.num_ranks - 0.45, -0.55)
    axes.set_yticks(range(0, sheet.num_ranks, max(1, -(-sheet.num_ranks // _MOST_TICKS))))
    axes.set_facecolor("#F2F2F2")
    most = max((span.chunk for span in sheet.spans), default=0)
    rows: dict[tuple[int, Do | None, int], list[Span]] = defaultdict(list)
    for span in sheet.spans:
        rows[span.rank, span.do, span.chunk].append(span)
    inches, _ = _inches(axes, sheet, seconds)
    usual = median([span.end - span.start for span in sheet.spans] or [0.0])
    edge = (
        "white" if usual * inches > _INCHES_AN_EDGE else "face"
    )  # a white edge would hide a thin bar
    for (rank, do, chunk), spans in rows.items():
        colour = palette.REDUCE if do is None else palette.ACTIONS[do]
        face = palette.tinted(colour, chunk / most if most else 0.0)
        bars = [(span.start / scale, (span.end - span.start) / scale) for span in spans]
        high = _HIGH if do is not None else _LOW  # sums of gradients overlap with actions
        place = (rank + _HIGH / 2 - high, high)
        axes.broken_barh(bars, place, facecolors=face, edgecolors=edge, linewidth=0.3)
    _draw_numbers(axes, sheet, seconds)
    _draw_legend(axes, sheet, most + 1)


def _draw_numbers(axes: Axes, sheet: StepSheet, seconds: float) -> None:
    inches, row = _inches(axes, sheet, seconds)
    scale, _ = time_unit(seconds)
    if row < _INCHES_A_LINE:
        return
    size, fitting = _numbered(sheet, inches)
    if len(fitting) > _MOST_NUMBERS:
        return
    for span in fitting:
        middle = (span.start + span.end) / 2 / scale
        text = str(span.microbatch)
        axes.text(middle, span.rank, text, ha="center", va="center", fontsize=size)


def _numbered(sheet: StepSheet, inches: float) -> tuple[float, list[Span]]:
    """Return the font size of microbatch numbers in points, and the bars that show a number.

    A bar shows its number if the text fits into the bar. The font size is the largest one that
    shows the same microbatches as the smallest font size.

    Args:
        sheet: Data of the step.
        inches: Width of one second in inches.
    """
    fitting = {size: _fitting(sheet, inches, size) for size in _SIZES}
    shown = {size: {span.microbatch for span in spans} for size, spans in fitting.items()}
    best = next(size for size in _SIZES if shown[size] == shown[_SIZES[-1]])
    return best, fitting[best]


def _fitting(sheet: StepSheet, inches: float, size: float) -> list[Span]:
    """Return the bars that are wide enough for the longest microbatch number.

    Args:
        sheet: Data of the step.
        inches: Width of one second in inches.
        size: Font size in points.
    """
    widest = max((str(span.microbatch) for span in sheet.spans), key=len, default="")
    needed = width_of("0" * len(widest), size) + _MARGIN
    return [
        span
        for span in sheet.spans
        if span.do is not None and (span.end - span.start) * inches > needed
    ]


def _inches(axes: Axes, sheet: StepSheet, seconds: float) -> tuple[float, float]:
    """Return the width of one second and the height of one rank's row, in inches.

    Args:
        axes: Panel to draw into.
        sheet: Data of the step.
        seconds: Time from the left to the right end of the panel.
    """
    wide, high = inches_of(axes)
    return wide / max(seconds, 1e-12), high / max(1, sheet.num_ranks)


def _draw_legend(axes: Axes, sheet: StepSheet, num_chunks: int) -> None:
    from matplotlib.patches import Patch

    used = {span.do for span in sheet.spans}
    handles = [
        Patch(facecolor=palette.ACTIONS[do], label=words)
        for do, words in _WORDS.items()
        if do in used
    ]
    if None in used:
        handles.append(Patch(facecolor=palette.REDUCE, label=_SUMS))
    title = (
        f"paler colours: later stages of a rank with {num_chunks} stages"
        if num_chunks > 1
        else None
    )
    axes.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=max(1, len(handles)),
        fontsize=_SMALL,
        frameon=False,
        title=title,
        title_fontsize=_SMALL,
        borderaxespad=0.1,
    )
