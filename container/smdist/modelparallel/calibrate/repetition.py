# SPDX-License-Identifier: Apache-2.0
"""Repeated measurement of a function within a time."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Final, NamedTuple

LEAST: Final = 3  # repetitions of a measurement, even if its time is over
_MOST: Final = 200
_BATCH_SECONDS: Final = 1e-3  # calls that are shorter are timed several at once


class Repetitions(NamedTuple):
    """Times of a call that was repeated.

    Attributes:
        seconds: Seconds of the fastest repetition.
        spread: By how much the median repetition is slower, relative to the fastest.
    """

    seconds: float
    spread: float


def repeated(call: Callable[[], object], wait: Callable[[], object], limit: float) -> Repetitions:
    """Return the times of a call, after one that is not counted.

    Other processes can only add to the time, so the fastest repetition is nearest to the machine's
    own speed.

    Short calls are timed in batches of about a millisecond, so that the time of the clock and of
    waiting does not count.

    Args:
        call: Function to measure.
        wait: Function that returns when all earlier calls have ended, as on an accelerator.
        limit: Seconds in which the measurement ends, unless three repetitions take longer.
    """
    call()
    wait()
    end = perf_counter() + limit
    count = max(1, min(_MOST, int(_BATCH_SECONDS / max(_batch(call, wait, 1), 1e-9))))
    times: list[float] = []
    while len(times) < LEAST or (perf_counter() < end and len(times) < _MOST):
        times.append(_batch(call, wait, count))
    return Repetitions(seconds=min(times), spread=median(times) / max(min(times), 1e-12) - 1)


def _batch(call: Callable[[], object], wait: Callable[[], object], count: int) -> float:
    """Return the mean seconds of `count` calls in a row."""
    begin = perf_counter()
    for _ in range(count):
        call()
    wait()
    return (perf_counter() - begin) / count
