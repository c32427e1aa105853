# SPDX-License-Identifier: Apache-2.0
"""Plot of time over size, one panel per layout."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from benchmarks.harness.bars import COLOURS
from benchmarks.harness.report import size_text


def draw(rows: list[Any]) -> Figure:
    """Draw the rows of the first dtype; the table has all dtypes."""
    dtype = rows[0].dtype
    layouts = list(dict.fromkeys(row.layout for row in rows))
    figure = Figure(figsize=(4.2 * len(layouts), 3.6))
    panels = figure.subplots(1, len(layouts), squeeze=False)[0]
    for panel, layout in zip(panels, layouts, strict=True):
        _draw(panel, [row for row in rows if (row.layout, row.dtype) == (layout, dtype)])
        panel.set_title(layout if "host" in layout else f"one host, {layout} ranks")
    panels[0].set_ylabel(f"milliseconds, {dtype}")
    panels[0].legend()
    return figure


def _draw(panel: Any, rows: list[Any]) -> None:
    sizes = [row.size for row in rows]
    for peer, colour in COLOURS.items():
        if rows and peer in rows[0].series:
            of_peer = [row.series[peer] for row in rows]
            panel.plot(
                sizes, [each.seconds * 1e3 for each in of_peer], "o-", color=colour, label=peer
            )
            low, high = zip(*[each.spread for each in of_peer], strict=True)
            panel.fill_between(
                sizes, [x * 1e3 for x in low], [x * 1e3 for x in high], color=colour, alpha=0.2
            )
    panel.plot(sizes, [row.limit * 1e3 for row in rows], "k:", label="limit")
    panel.set(xscale="log", yscale="log", xticks=sizes)
    panel.set_xticklabels([size_text(size) for size in sizes], rotation=60)
    panel.minorticks_off()
    panel.grid(alpha=0.3)
