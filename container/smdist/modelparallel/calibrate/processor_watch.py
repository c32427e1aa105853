# SPDX-License-Identifier: Apache-2.0
"""Watch over the processors during a measurement: which part of their time others took.

Linux counts the time of each processor by kind in /proc/stat, in ticks. The time of this process
and of its ended children is subtracted from all time that was not idle; time that the host of a
virtual machine took ("steal") is time of others, too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

_STAT: Final = Path("/proc/stat")
_IDLE: Final = (3, 4)  # columns of idle time, without and with outstanding reads
_COUNTED: Final = 8  # columns; the others are parts of the first ones


class ProcessorTimes(NamedTuple):
    """Seconds of processors since the machine started.

    Attributes:
        busy: Seconds that were not idle.
        total: All seconds.
        own: Seconds of this process and of its ended children.
    """

    busy: float
    total: float
    own: float


class ProcessorWatch:
    """Watch that begins when it is made, over the processors that this process may use."""

    def __init__(self) -> None:
        self._begin = processor_times()

    def busy_share(self) -> float:
        """Return the part of the processors' time, from 0 to 1, that others took since then."""
        begin, end = self._begin, processor_times()
        others = (end.busy - begin.busy) - (end.own - begin.own)
        total = max(end.total - begin.total, 1e-9)
        return min(1.0, max(0.0, others / total))


def processor_times() -> ProcessorTimes:
    """Return the seconds of the processors that this process may use."""
    tick, allowed = os.sysconf("SC_CLK_TCK"), os.sched_getaffinity(0)
    busy = total = 0
    for line in _STAT.read_text().splitlines():
        name, *columns = line.split()
        if name.removeprefix("cpu").isdigit() and int(name.removeprefix("cpu")) in allowed:
            ticks = [int(each) for each in columns[:_COUNTED]]
            total += sum(ticks)
            busy += sum(ticks) - sum(ticks[column] for column in _IDLE)
    return ProcessorTimes(busy=busy / tick, total=total / tick, own=sum(os.times()[:4]))
