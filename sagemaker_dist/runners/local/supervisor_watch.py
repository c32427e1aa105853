# SPDX-License-Identifier: Apache-2.0
"""Watch of a job's supervisor: a small process that says in the job's log that it is stopped.

    [sagemaker-dist] the supervisor of this job has been stopped for 10 s (kernel state T): ...

A supervisor that is stopped copies no output and ends no host, and nobody else would say why. The
watch is no descendant of the supervisor, so the supervisor neither waits for it nor kills it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from sagemaker_dist.runners.local.job_folder import append

CHECK_SECONDS: Final = 2.0  # between two looks at the supervisor
FIRST_SECONDS: Final = 10.0  # until a supervisor that is stopped is reported
AGAIN_SECONDS: Final = 60.0
_LETTERS: Final = {psutil.STATUS_STOPPED: "T", psutil.STATUS_TRACING_STOP: "t"}


class StopReport:
    """Lines about a supervisor that is stopped. Thread safety: none.

    Args:
        letter: Function that returns the kernel's letter of a supervisor that is stopped, else "".
        say: Function that is called with a line for the log.
        hint: How the supervisor can go on.
    """

    def __init__(self, letter: Callable[[], str], say: Callable[[str], None], hint: str) -> None:
        self._letter = letter
        self._say = say
        self._hint = hint
        self._since: float | None = None
        self._next_line = 0.0

    def check(self, now: float) -> None:
        """Look at the supervisor; `now` is in seconds. Report it after 10 s, and every minute."""
        letter = self._letter()
        if not letter:
            self._since = None
        elif self._since is None:
            self._since, self._next_line = now, now + FIRST_SECONDS
        elif now >= self._next_line:
            self._next_line = now + AGAIN_SECONDS
            seconds = f"{now - self._since:.0f} s (kernel state {letter})"
            self._say(f"the supervisor of this job has been stopped for {seconds}: {self._hint}")


def start_watch(supervisor: int, alive: int, log: Path) -> None:
    """Fork the watch of a supervisor; the watch ends with the supervisor, or with this job's log.

    Args:
        supervisor: Process number of the supervisor.
        alive: Read end of a pipe, which is at its end once the supervisor has ended. No other
            descriptor of this process stays open in the watch.
        log: Log of the job.
    """
    if os.fork() == 0:
        try:
            _watch(supervisor, alive, log)
        finally:
            os._exit(0)


def _watch(supervisor: int, alive: int, log: Path) -> None:
    with contextlib.suppress(OSError):  # this process leads a session already
        os.setsid()  # a signal to the supervisor's process group must not stop the watch
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _close_all_but(alive)

    def letter() -> str:
        try:
            return _LETTERS.get(psutil.Process(supervisor).status(), "")
        except psutil.Error:
            return ""

    def say(text: str) -> None:
        append(log, f"[sagemaker-dist] {text}\n".encode(errors="backslashreplace"))

    hint = (
        f"SIGCONT (kill -CONT {supervisor}) lets it go on; until then the output of the hosts is"
        " not copied to the logs"
    )
    report = StopReport(letter, say, hint)
    while log.exists() and not select.select([alive], [], [], CHECK_SECONDS)[0]:
        report.check(time.monotonic())


def _close_all_but(kept: int) -> None:
    """Close all descriptors but `kept`, such as the job's lock: it would outlive the supervisor."""
    os.closerange(0, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
