# SPDX-License-Identifier: Apache-2.0
"""Runs one command with a deadline, and ends all processes that it has started.

A command that is too late is aborted: Python then prints the stacks of all threads of each of its
processes. Processes whose parents have ended become children of this one, so that none is missed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_STACKS_SECONDS = 10.0  # what processes have to print their stacks, or to end by themselves
_ONE_STACK_SECONDS = 2.0  # what one process has before the next one prints its stacks
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended; exit_code is negative if a signal ended it."""

    exit_code: int
    seconds: float
    is_late: bool


def adopt_orphans() -> None:
    """Make this process the parent of all its descendants whose parents end."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(
    command: Sequence[str], environ: Mapping[str, str], folder: Path, log: Path, seconds: float
) -> Ended:
    """Run a command in a folder, with what it prints in a log, until it ends or is too late.

    Raises:
        KeyboardInterrupt: This process was interrupted; the command was, too, and has ended.
    """
    begin = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=dict(environ),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C reaches this process alone
        )
    is_late = False
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        is_late = True
        end_all(signal.SIGABRT)
    except BaseException:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STACKS_SECONDS)
        raise
    finally:
        end_all(signal.SIGTERM)
    return Ended(exit_code=process.wait(), seconds=time.monotonic() - begin, is_late=is_late)


def end_all(first: signal.Signals) -> None:
    """Send a signal to all descendants, and kill those that have not ended ten seconds later."""
    _send(first)
    until = time.monotonic() + _STACKS_SECONDS
    while descendants() and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    while descendants():
        _send(signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def descendants() -> list[int]:
    """Return the processes below this one that have not ended, and reap orphans that have."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, rest = status.read_text().split(" (", 1)
            state, parent = rest.rsplit(") ", 1)[1].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(number))
    found: list[int] = []
    pending = list(children.get(os.getpid(), []))
    while pending:
        found.append(pending.pop())
        pending += children.get(found[-1], [])
    return found


def _send(number: signal.Signals) -> None:
    for process in descendants():
        with suppress(ProcessLookupError):
            os.kill(process, number)
        if number == signal.SIGABRT:  # one after the other, since they print to the same log
            _await_end(process)


def _await_end(process: int) -> None:
    until = time.monotonic() + _ONE_STACK_SECONDS
    while process in descendants() and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
