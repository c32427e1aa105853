# SPDX-License-Identifier: Apache-2.0
"""Drawing of two bar charts: seconds of each stage, and memory of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from smdist.modelparallel.core.plan.number_format import size_unit, time_unit
from smdist.modelparallel.picture import palette
from smdist.modelparallel.picture.module_labels import endings, shortened
from smdist.modelparallel.picture.page_layout import inches_a_unit, width_of
from smdist.modelparallel.picture.sheet import Sheet, StageBar

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_WIDE: Final = 0.78  # width of a bar; the distance of bars is 1
_SMALL: Final = 7.0  # font size in points
_MARGIN: Final = 0.04  # inches between a name and the sides of its bar
_ROUNDED: Final = 1.06  # drawn letters are up to this factor wider than `width_of` returns
_INCHES_A_LINE: Final = 0.14  # smallest height of a segment with a name
_MOST_TICKS: Final = 16
_FAR: Final = 6  # a limit above this multiple of the largest bar is not drawn to scale
_PARTS: Final = (
    ("state_bytes", "weights, gradients, optimizer", palette.STATE),
    ("activation_bytes", "kept activations", palette.ACTIVATIONS),
    ("receive_bytes", "receive buffers", palette.RECEIVED),
    ("workspace_bytes", "workspace", palette.WORKSPACE),
)


def draw_stages(axes: Axes, sheet: Sheet) -> None:
    """Draw a bar for each stage: the time of one microbatch, forward and backward.

    A bar has one segment for each module that is not split further. The slowest of these modules
    has its own colour.
    """
    highest = max((stage.seconds for stage in sheet.stages), default=0.0)
    scale, unit = time_unit(highest)
    mean = sum(stage.seconds for stage in sheet.stages) / max(1, len(sheet.stages))
    axes.set_title("Stages: one microbatch, forward and backward", loc="left", fontsize=10)
    axes.set_ylabel(unit)
    axes.set_ylim(0, max(highest / scale, 1e-12) * 1.32)
    _columns(axes, len(sheet.stages), "stage")
    for index, stage in enumerate(sheet.stages):
        _draw_stage(axes, index, stage, scale=scale, largest=sheet.largest)
    line = axes.axhline(mean / scale, color=palette.INK, linestyle="--", linewidth=1, zorder=0.9)
    parts = [("units", palette.UNITS[0])]
    if sheet.largest:
        parts.append((f"{shortened(sheet.largest, 30)}, the largest", palette.LARGEST))
    if any(stage.between_seconds for stage in sheet.stages):
        parts.append(("between units", palette.BETWEEN))
    labels = [*(label for label, _ in parts), f"mean {mean / scale:.3g} {unit}"]
    _legend(axes, [*_patches(parts), line], labels)


def _draw_stage(axes: Axes, index: int, stage: StageBar, *, scale: float, largest: str) -> None:
    bottom = 0.0
    width, height = inches_a_unit(axes)
    available = (_WIDE * width - _MARGIN) / _ROUNDED
    for number, unit in enumerate(stage.units):
        tall = unit.seconds / scale
        colour = palette.LARGEST if unit.name == largest else palette.UNITS[number % 2]
        axes.bar(index, tall, _WIDE, bottom, color=colour, edgecolor="white", linewidth=0.4)
        if tall * height > _INCHES_A_LINE:
            middle, name = bottom + tall / 2, _label(unit.name, available)
            axes.text(index, middle, name, ha="center", va="center", fontsize=_SMALL)
        bottom += tall
    between = stage.between_seconds / scale
    if between:
        colour = palette.BETWEEN
        axes.bar(index, between, _WIDE, bottom, color=colour, edgecolor="white", linewidth=0.4)


def _label(name: str, width: float) -> str:
    """Return the longest ending of a module's name that fits into `width` inches, or ""."""
    fitting = (each for each in endings(name) if width_of(each, _SMALL) <= width)
    return next(fitting, "")


def draw_memory(axes: Axes, sheet: Sheet) -> None:
    """Draw the peak memory of each rank as a bar, with its parts, and a line at the limit."""
    totals = [sum(getattr(bar, name) for name, _, _ in _PARTS) for bar in sheet.memory]
    limit, most = sheet.limit_bytes or 0, max(totals, default=0)
    highest = (
        max(limit, most) if limit <= most * _FAR else most
    )  # with a limit far above, bars would be too low to read
    scale, unit = size_unit(highest)
    axes.set_title("Largest memory of each rank", loc="left", fontsize=10)
    axes.set_ylabel(unit)
    axes.set_ylim(0, max(highest / scale, 1e-12) * 1.32)
    _columns(axes, len(sheet.memory), "rank")
    bottoms = [0.0] * len(sheet.memory)
    for name, _, colour in _PARTS:
        tall = [getattr(bar, name) / scale for bar in sheet.memory]
        places = range(len(tall))
        axes.bar(places, tall, _WIDE, bottoms, color=colour, edgecolor="white", linewidth=0.4)
        bottoms = [bottom + each for bottom, each in zip(bottoms, tall, strict=True)]
    handles: list[Artist] = _patches([(label, colour) for _, label, colour in _PARTS])
    labels = [label for _, label, _ in _PARTS]
    if limit:
        handles.append(axes.axhline(limit / scale, color=palette.LIMIT, linestyle="--"))
        size, name = size_unit(limit)
        where = " (above)" if limit > highest else ""
        labels.append(f"limit {limit / size:.4g} {name}{where}")
    _legend(axes, handles, labels)


def _legend(axes: Axes, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    axes.legend(
        handles,
        labels,
        loc="upper left",
        ncols=3,
        fontsize=_SMALL,
        frameon=False,
        handlelength=1.4,
        columnspacing=1.2,
    )


def _columns(axes: Axes, count: int, what: str) -> None:
    step = -(-count // _MOST_TICKS)
    axes.set_xticks(range(0, count, max(1, step)))
    axes.set_xlim(-0.6, count - 0.4)
    axes.set_xlabel(what)


def _patches(parts: Sequence[tuple[str, str]]) -> list[Artist]:
    from matplotlib.patches import Patch

    return [Patch(facecolor=colour, label=label) for label, colour in parts]
