# SPDX-License-Identifier: Apache-2.0
"""The sentence that SageMaker shows as the reason of a failure.

SageMaker reads at most 1,024 characters of `<base>/output/failure`, so the
useful part comes first and a long message is cut before its place:

    algo-2 rank 3 exited with code 1: ValueError: boom (train.py:12 in main)
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from smdist.launch.report import Report, exit_status, signal_name

MAX_CHARACTERS: Final = 1024
_HINTS: Final = {
    signal.SIGKILL: "the host may have run out of memory; use smaller batches or a bigger instance",
    signal.SIGBUS: "shared memory may be full; use fewer DataLoader workers or a bigger /dev/shm",
    signal.SIGSEGV: "compiled code crashed; run with PYTHONFAULTHANDLER=1 to see where",
}

_MENDS: Final = {  # what torch says without the mend
    "Unknown backend type smdist": "Add `import smdist.dataparallel.torch` to the script",
    "environment variable RANK expected": "Pass distribution=DataParallel() to the estimator",
}


def first_failure(reports: Iterable[Report]) -> Report | None:
    """The rank nearest to the cause that failed first."""
    failed = [report for report in reports if report.failed]
    return min(failed, key=lambda report: (report.distance, report.at_seconds), default=None)


def describe(report: Report, label: str) -> str:
    """One rank's end in at most 1,024 characters."""
    who = label if report.rank is None else f"{label} rank {report.rank}"
    code = report.exit_code
    how = f"exited with code {code}"
    if exit_status(report.status) == code > 128 and report.status < 0:
        how = f"was killed by {signal_name(-report.status)}"
    place = f" ({report.frame})" if report.frame else ""
    if hint := next((text for number, text in _HINTS.items() if code == 128 + number), ""):
        last = f". The last it said: {report.error}" if report.error else ""
        return shorten(f"{who} {how}: {hint}{last}", place)
    mend = next((f". {text}" for part, text in _MENDS.items() if part in report.error), "")
    return shorten(f"{who} {how}: {report.error}" if report.error else f"{who} {how}", place + mend)


def shorten(text: str, end: str = "") -> str:
    """Keep the beginning and `end` within 1,024 characters that UTF-8 can write."""
    end = end[: MAX_CHARACTERS // 2]
    room = MAX_CHARACTERS - len(end)
    cut = text if len(text) <= room else f"{text[: room - 1]}…"
    return (cut + end).encode("utf-8", "replace").decode("utf-8")


def write_failure(base: Path, text: str) -> None:
    """Write the failure file, unless the script wrote its own."""
    path = base / "output" / "failure"
    with contextlib.suppress(OSError):  # nowhere to write is no second error
        if path.exists() and path.stat().st_size:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shorten(text), encoding="utf-8")
