# SPDX-License-Identifier: Apache-2.0
"""Peers take turns, round after round, so that a noisy machine is noisy for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Protocol

_WARM_UPS = 2  # rounds that do not count
_TURN_SECONDS = 0.08  # how long one turn of a peer should take, at least


class Group(Protocol):
    """Ranks of one peer."""

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """What `module:function` returns on each rank."""


@dataclass
class Series:
    """Of one peer and one piece of work: seconds for one iteration, a number per round.

    A round takes as long as its slowest rank; processor seconds are of all ranks together.
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
        """The 10th and the 90th percentile."""
        cuts = quantiles(self.wall, n=10)
        return cuts[0], cuts[-1]


def interleave(
    everyone: Mapping[str, tuple[Group, str]], rounds: int, most: int = 200
) -> dict[str, Series]:
    """Measure `module:function` of each name, in turns.

    The function takes `iterations` and returns wall and processor seconds for them.
    """
    turns = {name: _iterations(*work, most) for name, work in everyone.items()}
    series = {name: Series() for name in everyone}
    for number in range(_WARM_UPS + rounds):
        for name, (ranks, function) in everyone.items():
            times = ranks.call(function, iterations=turns[name])
            if number < _WARM_UPS:
                continue
            series[name].wall.append(max(wall for wall, _ in times) / turns[name])
            series[name].cpu.append(sum(cpu for _, cpu in times) / turns[name])
    return series


def _iterations(ranks: Group, function: str, most: int) -> int:
    """As many as fill a turn."""
    ranks.call(function, iterations=1)
    once = max(wall for wall, _ in ranks.call(function, iterations=2)) / 2
    return max(1, min(most, round(_TURN_SECONDS / once)))


def ratio(of: Series, to: Series, what: Callable[[Series], float]) -> float:
    """How many times `to` is `of`: above one, `of` is faster or cheaper."""
    return what(to) / max(what(of), 1e-12)
