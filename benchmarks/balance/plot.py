# SPDX-License-Identifier: Apache-2.0
"""Plot with one panel for each number of stages; bars are models, colours are methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

_GROUP = 0.8  # width of a group of bars; groups are 1 apart


def draw(rows: Sequence[Any], methods: Sequence[str]) -> Figure:
    """Draw bars that start at 1, which is an even partition."""
    numbers = sorted({row.num_stages for row in rows})
    figure = Figure(figsize=(11, 2.6 * len(numbers)), layout="constrained")
    panels = figure.subplots(len(numbers), 1, squeeze=False)[:, 0]
    for panel, number in zip(panels, numbers, strict=True):
        _draw(panel, [row for row in rows if row.num_stages == number], methods)
        panel.set_title(f"{number} stages")
        panel.set_ylabel("slowest / even share")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(methods), loc="outside lower center")
    return figure


def _draw(panel: Any, rows: Sequence[Any], methods: Sequence[str]) -> None:
    width = _GROUP / len(methods)
    for number, method in enumerate(methods):
        at = [group - _GROUP / 2 + (number + 0.5) * width for group in range(len(rows))]
        heights = [row.imbalance[method] - 1 for row in rows]
        panel.bar(at, heights, width, bottom=1, label=method)
    panel.set_xticks(range(len(rows)), [row.model for row in rows])
    panel.grid(axis="y", alpha=0.3)
