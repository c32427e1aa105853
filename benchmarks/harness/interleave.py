# SPDX-License-Identifier: Apache-2.0
"""Interleaved measurement: in each round all peers run in turn, so that noise affects all.

The order is shuffled for each round: no peer always runs after the same other one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Protocol

_WARM_UPS = 2  # rounds that do not count
_TURN_SECONDS = 0.08  # minimum duration of a peer's turn


class Group(Protocol):
    """Group of the ranks of one peer."""

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """Call `module:function` on each rank and return the results."""


@dataclass
class Series:
    """Times of one peer's work: seconds for one iteration, one value per round.

    A round takes as long as its slowest rank; processor seconds are summed over all ranks.
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return median(self.wall)

    @property
    def cpu_seconds(self) -> float:
        return median(self.cpu)

    @property
    def spread(self) -> tuple[float, float]:
        """Return the 10th and the 90th percentile; one time is both."""
        if len(self.wall) == 1:
            return self.wall[0], self.wall[0]
        cuts = quantiles(self.wall, n=10)
        return cuts[0], cuts[-1]


def interleave(
    everyone: Mapping[str, tuple[Group, str]], rounds: int, most: int = 200
) -> dict[str, Series]:
    """Measure the function of each name, `module:function`, in every round; return times by name.

    The function takes `iterations` and returns the wall and processor seconds for them.
    """
    turns = {name: _iterations(*work, most) for name, work in everyone.items()}
    series = {name: Series() for name in everyone}
    order = list(everyone.items())
    generator = random.Random(0)
    for number in range(_WARM_UPS + rounds):
        generator.shuffle(order)
        for name, (ranks, function) in order:
            times = ranks.call(function, iterations=turns[name])
            if number < _WARM_UPS:
                continue
            series[name].wall.append(max(wall for wall, _ in times) / turns[name])
            series[name].cpu.append(sum(cpu for _, cpu in times) / turns[name])
    return series


def _iterations(ranks: Group, function: str, most: int) -> int:
    """Return the number of iterations that fill a turn."""
    ranks.call(function, iterations=1)
    once = max(wall for wall, _ in ranks.call(function, iterations=2)) / 2
    return max(1, min(most, round(_TURN_SECONDS / once)))


def ratio(of: Series, to: Series, what: Callable[[Series], float]) -> float:
    """Return how many times faster or cheaper `of` is than `to`; above 1, `of` is better."""
    return what(to) / max(what(of), 1e-12)
