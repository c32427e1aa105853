# SPDX-License-Identifier: Apache-2.0
"""Bar chart of step times, with the spread of their rounds."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from benchmarks.harness.interleave import Series


def draw(series: Mapping[str, Series]) -> Figure:
    """Draw bars up to the median; whiskers are the 10th and the 90th percentile."""
    figure = Figure(figsize=(7, 2.6))
    panel = figure.subplots()
    names = [name.replace(", ", "\n") for name in series]
    medians = [each.seconds for each in series.values()]
    below = [each.seconds - each.spread[0] for each in series.values()]
    above = [each.spread[1] - each.seconds for each in series.values()]
    colours = ["tab:blue" if "smdist" in name else "tab:orange" for name in names]
    panel.barh(names, medians, xerr=(below, above), color=colours, alpha=0.8)
    panel.invert_yaxis()
    panel.set_xlabel("seconds a step")
    panel.grid(axis="x", alpha=0.3)
    return figure
