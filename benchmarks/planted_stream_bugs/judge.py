# SPDX-License-Identifier: Apache-2.0
"""Runs random schedules with planted bugs, and prints what they found, a line of JSON for each bug.

    python -m benchmarks.planted_stream_bugs.judge 3:20 4:20 0:1000   # bugs 3 and 4, the right code

PYTHONPATH has the runtime with the bugs, and tests/support.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import stream_schedules
from device_process import DeviceProcesses

from benchmarks.planted_stream_bugs.planting import VARIABLE

_BLOCK = 50  # schedules in one process group, at most
_RANKS = 2


def run_with_bug(rank: int, size: int, bug: int, seeds: range, notes: str, seconds: float) -> None:
    """Plant a bug in this process, and run schedules."""
    os.environ[VARIABLE] = str(bug)
    stream_schedules.run_schedules(rank, size, seeds, notes, seconds)


def main() -> None:
    """Judge each BUG:SCHEDULES of the command line; bug 0 is the right code."""
    processes = DeviceProcesses()
    try:
        for text in sys.argv[1:]:
            bug, schedules = map(int, text.split(":"))
            faults = _faults(processes, bug, schedules)
            first = next(iter(faults.values()), "")
            line = {"bug": bug, "schedules": schedules, "failed": len(faults), "first": first}
            print(json.dumps(line), flush=True)
    finally:
        processes.close()


def _faults(processes: DeviceProcesses, bug: int, schedules: int) -> dict[int, str]:
    """Return the first fault of each schedule that has one, by seed."""
    faults: dict[int, str] = {}
    begin = 0
    while begin < schedules:
        found, begin = _run(processes, bug, range(begin, min(begin + _BLOCK, schedules)))
        faults |= found
    return faults


def _run(processes: DeviceProcesses, bug: int, seeds: range) -> tuple[dict[int, str], int]:
    """Return the faults, by seed, and the first seed that has not run."""
    seconds = stream_schedules.HANGS if bug else stream_schedules.BUSY
    with tempfile.TemporaryDirectory() as notes:
        outcomes = processes.outcomes(
            run_with_bug,
            bug,
            seeds,
            notes,
            seconds,
            size=_RANKS,
            staging=stream_schedules.SLOTS,
            deadline=seconds * len(seeds),
        )
        files = [path.read_text().splitlines() for path in Path(notes).iterdir()]
    lines = [json.loads(line) for file in files for line in file]
    faults = {seed: fault for seed, fault in lines if fault}
    texts = [str(answer).strip().splitlines()[-1] for done, answer in outcomes if not done]
    if not texts:
        return faults, seeds.stop
    last = max((seed for seed, _ in lines), default=seeds.start)
    return {last: texts[0], **faults}, last + 1


if __name__ == "__main__":
    main()
