# SPDX-License-Identifier: Apache-2.0
"""Runs random schedules with one planted bug, or with the right code, and prints what it found.

    python -m benchmarks.planted_stream_bugs.judge 3 20     # bug 3 in 20 schedules, each alone
    python -m benchmarks.planted_stream_bugs.judge 0 1000   # the right code

PYTHONPATH has the runtime with the bugs, and tests/support.
"""

from __future__ import annotations

import json
import os
import sys

import stream_schedules
from device_process import DeviceProcesses

from benchmarks.planted_stream_bugs.planting import VARIABLE

_BLOCK = 50  # schedules of the right code in one process group
_DEADLINE = 15  # seconds of one schedule; most take less than one
_RANKS = 2


def main(bug: int, schedules: int) -> None:
    """Print the number of schedules that failed, and the first failure, as JSON."""
    os.environ[VARIABLE] = str(bug)
    size = 1 if bug else _BLOCK
    processes = DeviceProcesses()
    failed, first = 0, ""
    try:
        for begin in range(0, schedules, size):
            seeds = range(begin, min(begin + size, schedules))
            why = _failure(processes, seeds)
            failed += bool(why)
            first = first or why
    finally:
        processes.close()
    print(json.dumps({"failed": failed, "first": first}))


def _failure(processes: DeviceProcesses, seeds: range) -> str:
    outcomes = processes.outcomes(
        stream_schedules.run_schedules,
        seeds,
        size=_RANKS,
        staging=stream_schedules.SLOTS,
        deadline=_DEADLINE + len(seeds) * 3,
    )
    texts = [str(answer).strip().splitlines()[-1] for done, answer in outcomes if not done]
    wrong = [text for text in texts if "WrongResultError" in text]
    return next(iter(wrong or texts), "")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
