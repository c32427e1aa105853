# SPDX-License-Identifier: Apache-2.0
"""Rows of the table: smdist beside one other, with the ratio of medians and the goal for it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.harness.interleave import Series
from benchmarks.harness.report import time_text

COLUMNS = [
    "", "size", "smdist", "10 % to 90 %", "beside", "its time", "10 % to 90 % there", "ratio",
    "goal", "CPU s", "its CPU s",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """smdist's times and those of another in the same rounds.

    Attributes:
        goal: Ratio that is aimed at; None: there is none.
    """

    what: str
    size: str
    own: Series
    beside: str
    other: Series
    goal: float | None = None

    @property
    def ratio(self) -> float:
        """Return the other's time over smdist's: above 1, smdist is faster."""
        return self.other.seconds / self.own.seconds

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        return [
            self.what,
            self.size,
            time_text(self.own.seconds),
            _spread(self.own),
            self.beside,
            time_text(self.other.seconds),
            _spread(self.other),
            f"{self.ratio:.3g}",
            self._goal(),
            f"{self.own.cpu_seconds:.3g}",
            f"{self.other.cpu_seconds:.3g}",
        ]

    def _goal(self) -> str:
        if self.goal is None:
            return "-"
        return f"{self.goal:g}: {'met' if self.ratio >= self.goal else 'NOT met'}"


def _spread(series: Series) -> str:
    low, high = series.spread
    return f"{time_text(low)} to {time_text(high)}"
