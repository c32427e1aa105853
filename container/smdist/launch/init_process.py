# SPDX-License-Identifier: Apache-2.0
"""Entry point `smdist-init`: process 1 of a container whose command is no init.

    smdist-init train                becomes `train`, which handles signals itself
    smdist-init bash -c "… && …"     starts the command and stays:

        SIGTERM ──▶ every process below, once; some only after others have ended
                    (`process_tree.hearers`)
        all ended, or SIGKILL after stop_seconds ──▶ exit with the command's status

The kernel drops signals to process 1 that have no handler, and a shell has none; without
smdist-init the shell's children would not hear of a stop. Orphans are reaped.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from smdist.launch.process_tree import below, hearers

_STOPS = (signal.SIGTERM, signal.SIGINT)
_HEARD = (*_STOPS, signal.SIGCHLD)
_TICK_SECONDS = 0.1
_KILL_SECONDS = 5.0


def main() -> int:
    """Run a command as process 1 should; return its status, 128 + n after signal n."""
    command = sys.argv[1:] or ["train"]
    if command[0] == "train":  # train handles signals once its handlers are installed
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        return _become(command)
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, _HEARD
    )  # blocked signals stay pending until sigtimedwait
    _adopt()
    child = os.fork()
    if child == 0:
        _lead(before)
        os._exit(_become(command))
    return Init(child, _stop_seconds()).run()


class Init:
    """Wait for one command and for every process that it leaves. Thread safety: none."""

    def __init__(self, command: int, stop_seconds: float) -> None:
        self._command = command
        self._stop_seconds = stop_seconds
        self._status: int | None = None
        self._told: dict[int, set[int]] = {}  # signal -> processes that have received it
        self._deadline = float("inf")

    def run(self) -> int:
        """Wait until every process has ended that must; return the command's status."""
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
        """Tell whether to stop waiting: the command ended, or a stop and then all."""
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
            told.intersection_update(below(os.getpid()))  # process numbers are reused
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
    """Replace this process by the command; return the shell's status if it cannot run."""
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
    """Become the parent of orphans; process 1 is that already."""
    if os.getpid() != 1:
        from smdist.launch.process_control import adopt_orphans

        adopt_orphans()


def _lead(mask: set[int | signal.Signals]) -> None:
    """Prepare the child: restore signals, and make it the terminal's foreground group.

    In a group of its own the child gets Ctrl-C once, from the terminal alone.
    """
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        if os.tcgetpgrp(0) == os.getpgid(os.getppid()):
            os.tcsetpgrp(0, os.getpid())
    except OSError:  # there is no terminal
        pass
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _stop_seconds() -> float:
    from sagemaker_dist.errors import DistError  # imported late: the command runs meanwhile
    from smdist.config import STOP_SECONDS, read_stop_seconds

    try:
        return read_stop_seconds()
    except DistError as error:
        os.write(2, f"smdist-init: {error}\n".encode())
        return STOP_SECONDS


def _kill() -> None:
    """Send SIGKILL to the remaining processes until none is left."""
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
    except OSError:  # the process has ended, or belongs to another user
        return


if __name__ == "__main__":
    sys.exit(main())
