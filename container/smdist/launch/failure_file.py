# SPDX-License-Identifier: Apache-2.0
"""The failure file, whose text SageMaker shows as the reason of a failed job.

SageMaker reads at most 1,024 characters of `<base>/output/failure`. The file therefore begins
with the rank and the error, and a long error is shortened so that its source line still fits:

    algo-2 rank 3 exited with code 1: ValueError: boom (train.py:12 in main)
"""

from __future__ import annotations

import contextlib
import json
import signal
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from smdist.launch.guard_protocol import Report, exit_status, signal_name
from smdist.launch.result_file import write_result

HasLeft = Callable[[int], bool]

MAX_CHARACTERS: Final = 1024
_LEFT: Final = "left"  # kind of a fault whose culprit has ended without an error
_SIGNAL_CAUSES: Final = {
    signal.SIGKILL: "the host may have run out of memory; use smaller batches or a bigger instance",
    signal.SIGBUS: "shared memory may be full; use fewer DataLoader workers or a bigger /dev/shm",
    signal.SIGSEGV: "compiled code crashed; run with PYTHONFAULTHANDLER=1 to see where",
}

_HINTS: Final = {  # part of an error text of torch -> hint to append
    "Unknown backend type smdist": "Add `import smdist.dataparallel.torch` to the script",
    "have NCCL built in": 'Without a GPU, pass "smdist" to init_process_group',
    "environment variable RANK expected": "Pass distribution=DataParallel() to the estimator",
}


def first_failure(reports: Iterable[Report]) -> Report | None:
    """Return the report of the rank whose failure is the cause; None if no rank failed.

    A rank that failed by itself counts before ranks that failed because of another rank; among
    equals, the earliest counts.
    """
    failed = [report for report in reports if report.failed]
    return min(failed, key=lambda report: (report.distance, report.at_seconds), default=None)


def describe(report: Report, label: str) -> str:
    """Return a sentence on how one rank ended, in at most 1,024 characters.

    It begins with the rank that caused this, if that rank left without an error. `label` is the
    host's name in messages.
    """
    who = label if report.rank is None else f"{label} rank {report.rank}"
    who = _who_left(report) + who
    code, how = report.exit_code, _how(report)
    place = f" ({report.frame})" if report.frame else ""
    if cause := next((text for number, text in _SIGNAL_CAUSES.items() if code == 128 + number), ""):
        last = f". Its last output: {report.error}" if report.error else ""
        return shorten(f"{who} {how}: {cause}{last}", place)
    hint = next((f". {text}" for part, text in _HINTS.items() if part in report.error), "")
    return shorten(f"{who} {how}: {report.error}" if report.error else f"{who} {how}", place + hint)


def describe_end(report: Report) -> str:
    """Return how one rank ended, in at most 1,024 characters: "rank 3 was killed by SIGKILL"."""
    who = "the script" if report.rank is None else f"rank {report.rank}"
    error = f": {report.error}" if report.error and report.status > 0 else ""
    return shorten(f"{who} {_how(report)}{error}")


def with_left_rank(report: Report, others: Iterable[Report], elsewhere: HasLeft) -> Report:
    """Return `report` with a fault of kind "left" if the fault's culprit left without an error.

    os._exit(0) shuts no engine down, so that the rank itself knows only of a lost connection.

    Args:
        report: Report of the rank whose failure is the cause on this host.
        others: Reports of this host's ranks.
        elsewhere: Function that returns True if a rank of another host has left.
    """
    fault = report.fault
    if fault is None or fault.culprit is None or not report.is_secondary:
        return report
    here = {each.rank: each for each in others}.get(fault.culprit)
    has_left = elsewhere(fault.culprit) if here is None else not (here.failed or here.stopped)
    return replace(report, fault=replace(fault, kind=_LEFT)) if has_left else report


def _who_left(report: Report) -> str:
    fault = report.fault
    if fault is None or fault.culprit is None or fault.kind != _LEFT or not report.is_secondary:
        return ""
    return f"rank {fault.culprit} left while other ranks needed it: "


def _how(report: Report) -> str:
    code = report.exit_code
    if exit_status(report.status) == code > 128 and report.status < 0:
        return f"was killed by {signal_name(-report.status)}"
    return f"exited with code {code}"


def shorten(text: str, end: str = "") -> str:
    """Return `text` + `end`, with `text` shortened so that both fit in 1,024 characters.

    Characters that UTF-8 cannot encode become "?".
    """
    end = end[: MAX_CHARACTERS // 2]
    left = MAX_CHARACTERS - len(end)
    start = text if len(text) <= left else f"{text[: left - 1]}…"
    return (start + end).encode("utf-8", "replace").decode("utf-8")


def fields_of(report: Report, label: str) -> dict[str, Any]:
    """Return the fields of failure.json, which describe how one rank ended.

    `label` is the name of the rank's host.
    """
    fault = {} if report.fault is None else asdict(report.fault)
    if not fault.get("late_ranks"):
        fault.pop("late_ranks", None)  # only a timeout has late ranks
    if fault.get("culprit") is None and not report.is_secondary:
        fault["culprit"] = report.rank  # the rank failed by itself
    return {
        "host": label,
        "rank": report.rank,
        "exit_code": report.exit_code,
        "is_secondary": report.is_secondary,
        "frame": report.frame,
        **fault,
    }


def write_failure(base: Path, text: str, fields: Mapping[str, Any] | None = None) -> None:
    """Write `text` to `<base>/output/failure`, and `fields` to failure.json beside it.

    A failure file that the script has written is kept; a link, a FIFO or an empty file is replaced.
    Faults of the disk are ignored.
    """
    path = base / "output" / "failure"
    with contextlib.suppress(OSError):  # a full disk must not hide the first error
        if _has_text(path):
            return
        write_result(path, shorten(text))
        if fields:
            write_result(path.with_suffix(".json"), json.dumps(fields))


def _has_text(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > 0


def write_loss(base: Path, why: str) -> None:
    """Write `why` to `<base>/output/lost`, on a host without which an elastic job has succeeded.

    Faults of the disk are ignored.
    """
    with contextlib.suppress(OSError):
        write_result(base / "output" / "lost", shorten(why))
