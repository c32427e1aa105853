# SPDX-License-Identifier: Apache-2.0
"""`smdist-init`: process 1 of a container, for a command that is no init itself.

    smdist-init train                becomes `train`, which does all this itself
    smdist-init bash -c "… && …"     starts it and stays:

        SIGTERM ──▶ every process below, once; some only when others have ended
                    (`family.hearers`)
        all ended, or stop_seconds later SIGKILL ──▶ the command's own status

The kernel drops a signal for process 1 that has no handler, and a shell has
none; what a shell started would never hear of a stop. Orphans are reaped.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from smdist.launch.family import below, hearers

_STOPS = (signal.SIGTERM, signal.SIGINT)
_HEARD = (*_STOPS, signal.SIGCHLD)
_TICK_SECONDS = 0.1
_KILL_SECONDS = 5.0


def main() -> int:
    """Run a command as process 1 should; return its status, 128 + n after signal n."""
    command = sys.argv[1:] or ["train"]
    if command[0] == "train":  # which hears signals once it has its handlers
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        return _become(command)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)  # each waits until it is asked for
    _adopt()
    child = os.fork()
    if child == 0:
        _lead(before)
        os._exit(_become(command))
    return Init(child, _stop_seconds()).run()


class Init:
    """Waits for one command and for all that it leaves. Thread safety: none."""

    def __init__(self, command: int, stop_seconds: float) -> None:
        self._command = command
        self._stop_seconds = stop_seconds
        self._status: int | None = None
        self._told: dict[int, set[int]] = {}  # who has heard each signal
        self._deadline = float("inf")

    def run(self) -> int:
        """Return the command's status once all has ended that had to."""
        while not self._is_over():
            self._pass_on()
            tick = _TICK_SECONDS if self._told else 3600.0
            heard = signal.sigtimedwait(_HEARD, tick)
            if heard and heard.si_signo in _STOPS:
                self._stop(heard.si_signo)
            self._reap()
        _kill()
        return 128 + signal.SIGKILL if self._status is None else self._status

    def _is_over(self) -> bool:
        """Without a stop the command's end is the end; after one all have their time."""
        if time.monotonic() >= self._deadline:
            return True
        return self._status is not None and not (self._told and below(os.getpid()))

    def _stop(self, number: int) -> None:
        self._told.setdefault(number, set())
        self._deadline = min(self._deadline, time.monotonic() + self._stop_seconds)

    def _pass_on(self) -> None:
        for number, told in self._told.items():
            reached = hearers(os.getpid(), number)
            for process in reached - told:
                _send(process, number)
            told.intersection_update(below(os.getpid()))  # numbers are used again
            told |= reached

    def _reap(self) -> None:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._command:
                    code = os.waitstatus_to_exitcode(ended[1])
                    self._status = code if code >= 0 else 128 - code
        except ChildProcessError:
            return


def _become(command: list[str]) -> int:
    """Replace this process; return only with the shell's status for what cannot run."""
    try:
        os.execvp(command[0], command)  # noqa: S606  # a shell would drop signals
    except FileNotFoundError:
        status, why = 127, "no such command is in the image"
    except OSError as error:
        status, why = 126, f"it cannot be run: {error.strerror}"
    text = f"smdist-init: {command[0]!r}: {why}. Correct the container's command.\n"
    os.write(2, text.encode("utf-8", "backslashreplace"))
    return status


def _adopt() -> None:
    """Process 1 gets every orphan anyhow."""
    if os.getpid() != 1:
        from smdist.launch.processes import adopt_orphans

        adopt_orphans()


def _lead(mask: set[int | signal.Signals]) -> None:
    """In the child: signals as they were, and the terminal, if there is one.

    With a group of its own it gets Ctrl-C once: from the terminal, not also from us.
    """
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        if os.tcgetpgrp(0) == os.getpgid(os.getppid()):
            os.tcsetpgrp(0, os.getpid())
    except OSError:  # no terminal
        pass
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _stop_seconds() -> float:
    from sagemaker_dist.errors import DistError  # the command runs meanwhile
    from smdist.config import STOP_SECONDS, read_stop_seconds

    try:
        return read_stop_seconds()
    except DistError as error:
        os.write(2, f"smdist-init: {error}\n".encode())
        return STOP_SECONDS


def _kill() -> None:
    """SIGKILL what is left until nothing is."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (left := below(os.getpid())) and time.monotonic() < deadline:
        for process in left:
            _send(process, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, _TICK_SECONDS)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            continue


def _send(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except OSError:  # it ended meanwhile, or belongs to somebody else
        return


if __name__ == "__main__":
    sys.exit(main())
