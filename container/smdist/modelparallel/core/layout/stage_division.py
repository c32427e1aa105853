# SPDX-License-Identifier: Apache-2.0
"""Division of a chain of layers into stages, so that the slowest stage is as fast as possible.

A bound on the seconds of a stage is possible if stages that take as many layers as fit, one after
another, reach the end of the chain. Fewer layers are never heavier, so that this greedy division
reaches the end whenever any division does. The least bound is found by bisection.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

_ROUNDS: Final = 50  # halves the interval to a relative width of 1e-15
_ROUNDING: Final = 1e-12  # relative error of sums of floating-point numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimit:
    """Memory of the stages.

    Attributes:
        fixed: Bytes of each layer on any stage.
        held: Bytes of each layer for each microbatch that a stage holds.
        in_flight: Microbatches that each stage holds at once, by stage.
        limit_bytes: Bytes that a stage may use.
    """

    fixed: Sequence[float]
    held: Sequence[float]
    in_flight: Sequence[int]
    limit_bytes: float


def divide(
    seconds: Sequence[float], num_stages: int, memory: StageLimit | None = None
) -> tuple[int, ...] | None:
    """Return the end of each stage, exclusive, or None if no division fits in memory.

    Args:
        seconds: Seconds of each layer.
        num_stages: Number of stages; each has at least one layer.
        memory: Memory of the stages; None for no limit.
    """
    if num_stages > len(seconds):
        return None
    packer = _Packer(seconds, num_stages, memory)
    low, high = max(max(seconds), packer.total / num_stages), packer.total
    best = packer.pack(high * (1 + _ROUNDING))
    if best is None:
        return None
    tight = packer.pack(low * (1 + _ROUNDING))
    if tight is not None:
        return tight
    high = packer.slowest(best)
    for _ in range(_ROUNDS):
        if high - low <= 1e-9 * high:
            break
        middle = (low + high) / 2
        found = packer.pack(middle)
        if found is None:
            low = middle
        else:
            best, high = found, packer.slowest(found)
    return best


class _Packer:
    """Greedy division with a bound on the seconds of a stage."""

    def __init__(
        self, seconds: Sequence[float], num_stages: int, memory: StageLimit | None
    ) -> None:
        self._times = [0.0, *accumulate(seconds)]
        self._count = num_stages
        self._memory = memory
        if memory is not None:
            self._fixed = [0.0, *accumulate(memory.fixed)]
            self._held = [0.0, *accumulate(memory.held)]

    @property
    def total(self) -> float:
        """Seconds of all layers."""
        return self._times[-1]

    def pack(self, bound: float) -> tuple[int, ...] | None:
        """Return ends of stages of at most `bound` seconds that fit in memory, or None."""
        times, total, start, ends = self._times, len(self._times) - 1, 0, []
        for stage in range(self._count):
            end = bisect_right(times, times[start] + bound) - 1
            end = min(end, total - (self._count - 1 - stage))
            if self._memory is not None:
                end = self._fitting(self._memory, stage, start, end)
            if end <= start:
                return None
            ends.append(end)
            start = end
        return tuple(ends) if start == total else None

    def _fitting(self, memory: StageLimit, stage: int, start: int, end: int) -> int:
        """Return the last end, at most `end`, with which a stage fits in memory."""
        held, limit = memory.in_flight[stage], memory.limit_bytes
        base = self._fixed[start] + held * self._held[start] + limit
        if self._fixed[end] + held * self._held[end] <= base:
            return end
        low = start
        while end - low > 1:
            middle = (low + end) // 2
            if self._fixed[middle] + held * self._held[middle] <= base:
                low = middle
            else:
                end = middle
        return low

    def slowest(self, ends: tuple[int, ...]) -> float:
        """Return the seconds of the slowest stage."""
        times = self._times
        return max(times[end] - times[start] for start, end in zip((0, *ends), ends, strict=False))
