# SPDX-License-Identifier: Apache-2.0
"""Bar chart of times, one group per piece of work, each with its limit as a line across."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.interleave import Series

COLOURS = {
    "smdist": "tab:blue",
    "gloo": "tab:orange",
    "openmpi": "tab:green",
    "bare": "tab:gray",
    "mirrored": "tab:orange",
}
_GROUP = 0.8  # width of a group of bars; groups are 1 apart


def draw(
    labels: Sequence[str], groups: Sequence[Mapping[str, Series]], limits: Sequence[float]
) -> Figure:
    """Draw bars up to the median; whiskers are the 10th and the 90th percentile."""
    peers = [peer for peer in COLOURS if peer in groups[0]]
    figure = Figure(figsize=(2 + 1.1 * len(labels), 3.6))
    panel = figure.subplots()
    for number, peer in enumerate(peers):
        _bars(panel, peer, [group[peer] for group in groups], number, len(peers))
    starts = [group - _GROUP / 2 for group in range(len(labels))]
    ends = [start + _GROUP for start in starts]
    panel.hlines([limit * 1e3 for limit in limits], starts, ends, "k", "dotted", label="limit")
    panel.set_xticks(range(len(labels)), labels)
    panel.set_ylabel("milliseconds")
    panel.grid(axis="y", alpha=0.3)
    panel.legend(loc="upper left")
    return figure


def _bars(panel: Axes, peer: str, series: Sequence[Series], number: int, peers: int) -> None:
    width = _GROUP / peers
    at = [group - _GROUP / 2 + (number + 0.5) * width for group in range(len(series))]
    heights = [each.seconds * 1e3 for each in series]
    below = [max(0, each.seconds - each.spread[0]) * 1e3 for each in series]
    above = [max(0, each.spread[1] - each.seconds) * 1e3 for each in series]
    panel.bar(at, heights, width, yerr=(below, above), color=COLOURS[peer], alpha=0.8, label=peer)
