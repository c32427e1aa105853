# SPDX-License-Identifier: Apache-2.0
"""The failure file, whose text SageMaker shows as the reason of a failed job.

SageMaker reads at most 1,024 characters of `<base>/output/failure`, so the useful part comes
first and a long message is shortened before its source line:

    algo-2 rank 3 exited with code 1: ValueError: boom (train.py:12 in main)
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from smdist.launch.rank_report import Report, exit_status, signal_name

MAX_CHARACTERS: Final = 1024
_OF_SIGNALS: Final = {
    signal.SIGKILL: "the host may have run out of memory; use smaller batches or a bigger instance",
    signal.SIGBUS: "shared memory may be full; use fewer DataLoader workers or a bigger /dev/shm",
    signal.SIGSEGV: "compiled code crashed; run with PYTHONFAULTHANDLER=1 to see where",
}

_HINTS: Final = {  # errors of torch that come without a hint
    "Unknown backend type smdist": "Add `import smdist.dataparallel.torch` to the script",
    "environment variable RANK expected": "Pass distribution=DataParallel() to the estimator",
}


def first_failure(reports: Iterable[Report]) -> Report | None:
    """Return the report of the rank that failed first, preferring causes to consequences."""
    failed = [report for report in reports if report.failed]
    return min(failed, key=lambda report: (report.distance, report.at_seconds), default=None)


def describe(report: Report, label: str) -> str:
    """Describe the end of one rank in at most 1,024 characters."""
    who = label if report.rank is None else f"{label} rank {report.rank}"
    code = report.exit_code
    how = f"exited with code {code}"
    if exit_status(report.status) == code > 128 and report.status < 0:
        how = f"was killed by {signal_name(-report.status)}"
    place = f" ({report.frame})" if report.frame else ""
    if said := next((text for number, text in _OF_SIGNALS.items() if code == 128 + number), ""):
        last = f". The last it said: {report.error}" if report.error else ""
        return shorten(f"{who} {how}: {said}{last}", place)
    hint = next((f". {text}" for part, text in _HINTS.items() if part in report.error), "")
    return shorten(f"{who} {how}: {report.error}" if report.error else f"{who} {how}", place + hint)


def shorten(text: str, end: str = "") -> str:
    """Shorten `text` so that it and `end` fit in 1,024 characters that UTF-8 can encode."""
    end = end[: MAX_CHARACTERS // 2]
    room = MAX_CHARACTERS - len(end)
    cut = text if len(text) <= room else f"{text[: room - 1]}…"
    return (cut + end).encode("utf-8", "replace").decode("utf-8")


def fields_of(report: Report, label: str) -> dict[str, Any]:
    """Return the fields of one rank's end, for programs."""
    return {
        "host": label,
        "rank": report.rank,
        "exit_code": report.exit_code,
        "is_secondary": report.is_secondary,
        "frame": report.frame,
        **(asdict(report.fault) if report.fault is not None else {}),
    }


def write_failure(base: Path, text: str, fields: Mapping[str, Any] | None = None) -> None:
    """Write the failure file, and the fields beside it, unless the script has written its own."""
    path = base / "output" / "failure"
    with contextlib.suppress(OSError):  # a missing directory must not hide the first error
        if path.exists() and path.stat().st_size:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shorten(text), encoding="utf-8")
        if fields:
            path.with_suffix(".json").write_text(json.dumps(fields), encoding="utf-8")
