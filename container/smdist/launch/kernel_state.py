# SPDX-License-Identifier: Apache-2.0
"""State of a process in the Linux kernel, from /proc, and a watch for one that does not run.

    [algo-2 rank 3] smdist: this process has been stopped for 10 s (kernel state T): ...

The engine of such a process is silent, and other ranks can only say that it does not answer. Its
parent process can see why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from smdist.launch.result_file import write_result

CHECK_SECONDS: Final = 2.0  # between two looks at the process
FIRST_SECONDS: Final = 10.0  # in one state, without any work, until it is reported
AGAIN_SECONDS: Final = 60.0
_MEANINGS: Final = {
    "T": ("has been stopped", "SIGCONT (kill -CONT PID) lets it go on"),
    "t": ("has been stopped by a debugger", "the debugger has to let it go on"),
    "D": ("has waited for a disk or a file server", "look at the storage that it uses"),
    "Z": ("has lost its main thread", "its other threads still run; end the process"),
    "R": ("has had no processor", "other processes or a CPU limit of the container take them all"),
}


@dataclass(frozen=True, slots=True)
class KernelState:
    """State of a process.

    Attributes:
        letter: The kernel's letter: "R" runs or is ready to, "S" sleeps until an event, "D" sleeps
            until a device answers, "T" is stopped, "t" is stopped by a debugger, "Z" has ended.
        ticks: Processor time that the process has used, in clock ticks.
    """

    letter: str
    ticks: int


def read_kernel_state(pid: int) -> KernelState | None:
    """Return the state of the process `pid`; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may contain anything
    return KernelState(fields[0], int(fields[11]) + int(fields[12]))


class StateWatch:
    """Reports a process that is stopped, or otherwise does not run. Thread safety: none.

    A process that sleeps until an event is never reported: ranks that wait for others do so.

    Args:
        pid: The process.
        say: Function that is called with a line for the log.
        record: File for the last reported state, as JSON: {"pid", "letter", "seconds", "text"}. It
            is written with each line, and removed when the process runs again. None for no file.
        clock: Function that returns the time in seconds.
        subject: What the process is, at the beginning of a line.
    """

    def __init__(
        self,
        pid: int,
        say: Callable[[str], None],
        record: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        subject: str = "this process",
    ) -> None:
        self._pid = pid
        self._say = say
        self._record = record
        self._clock = clock
        self._subject = subject
        self._state: KernelState | None = None
        self._since = self._checked = clock()
        self._next_line = float("inf")
        self._is_reported = False

    @property
    def seconds_left(self) -> float:
        """Seconds until the next check."""
        return max(0.0, self._checked + CHECK_SECONDS - self._clock())

    def check(self) -> None:
        """Look at the process, if it is time; say what is wrong with it, if it is time for that."""
        now = self._clock()
        if now < self._checked + CHECK_SECONDS:
            return
        self._checked = now
        state = read_kernel_state(self._pid)
        if state is None or state.letter not in _MEANINGS or state != self._state:
            self._restart(state, now)
        elif now >= self._next_line:
            self._next_line = now + AGAIN_SECONDS
            self._is_reported = True
            self._report(state.letter, now - self._since)

    def _restart(self, state: KernelState | None, now: float) -> None:
        if self._is_reported:
            self._forget()
        self._is_reported = False
        self._state, self._since = state, now
        self._next_line = now + FIRST_SECONDS

    def _report(self, letter: str, seconds: float) -> None:
        what, hint = _MEANINGS[letter]
        hint = hint.replace("PID", str(self._pid))
        text = f"{self._subject} {what} for {seconds:.0f} s (kernel state {letter}): {hint}"
        self._say(f"smdist: {text}")
        if self._record is not None:
            found = {"pid": self._pid, "letter": letter, "seconds": round(seconds), "text": text}
            with suppress(OSError):  # a full disk must not end the guard
                write_result(self._record, json.dumps(found))

    def _forget(self) -> None:
        if self._record is not None:
            with suppress(OSError):
                self._record.unlink(missing_ok=True)
