# SPDX-License-Identifier: Apache-2.0
"""Entry point `smdist-init`: runs a container's command and does the duties of process 1.

    smdist-init train                replaces itself by `train`, which handles signals itself
    smdist-init bash -c "… && …"     starts the command as a child and waits for it

While it waits, it acts on these events:

    SIGTERM or SIGINT     sends the signal to every descendant, once; to some of them only
                          after others have ended (`process_tree.signal_targets`)
    a descendant ends     collects its exit status, also if its parent has ended before
    the command ends      kills the other descendants and exits with the command's status; after
                          a signal, it first waits until all descendants have ended, for at
                          most SMDIST_STOP_SECONDS (default 110) since the signal

The kernel ignores signals to process 1 that have no handler, and a shell has none. Without
smdist-init the shell's children would therefore receive no stop signal.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from smdist.launch.process_tree import below, signal_targets

_STOPS = (signal.SIGTERM, signal.SIGINT)
_AWAITED = (*_STOPS, signal.SIGCHLD)
_TICK_SECONDS = 0.1
_KILL_SECONDS = 5.0


def main() -> int:
    """Run the command in sys.argv, by default `train`; return its exit status.

    The status is 128 + n if signal n ended the command.
    """
    command = sys.argv[1:] or ["train"]
    if command[0] == "train":  # train handles signals once its handlers are installed
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        return _become(command)
    # blocked signals stay pending until sigtimedwait takes them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    _adopt()
    child = os.fork()
    if child == 0:
        _lead(before)
        os._exit(_become(command))
    return Init(child, _stop_seconds()).run()


class Init:
    """Waits for one command and for all processes that the command started. Thread safety: none.

    `command` is the process number of the command. `stop_seconds` is the time limit for all
    processes after a stop signal, in seconds.
    """

    def __init__(self, command: int, stop_seconds: float) -> None:
        self._command = command
        self._stop_seconds = stop_seconds
        self._status: int | None = None
        self._signalled: dict[int, set[int]] = {}  # signal -> processes that have received it
        self._deadline = float("inf")

    def run(self) -> int:
        """Wait for the command; after a stop signal, for all its descendants too.

        Then kill the descendants that still run, and return the command's exit status.
        """
        while not self._is_over():
            self._pass_on()
            tick = _TICK_SECONDS if self._signalled else 3600.0
            received = signal.sigtimedwait(_AWAITED, tick)
            if received and received.si_signo in _STOPS:
                self._stop(received.si_signo)
            self._reap()
        _kill()
        return 128 + signal.SIGKILL if self._status is None else self._status

    def _is_over(self) -> bool:
        """Return True if this process need not wait any longer.

        Without a stop signal, it waits until the command has ended. After a stop signal, it waits
        until all descendants have ended, too, or until the time limit has passed.
        """
        if time.monotonic() >= self._deadline:
            return True
        return self._status is not None and not (self._signalled and below(os.getpid()))

    def _stop(self, number: int) -> None:
        self._signalled.setdefault(number, set())
        self._deadline = min(self._deadline, time.monotonic() + self._stop_seconds)

    def _pass_on(self) -> None:
        for number, signalled in self._signalled.items():
            targets = signal_targets(os.getpid(), number)
            for process in targets:
                if process not in signalled:
                    _send(process, number)
            signalled.intersection_update(below(os.getpid()))  # process numbers are reused
            signalled.update(targets)

    def _reap(self) -> None:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._command:
                    code = os.waitstatus_to_exitcode(ended[1])
                    self._status = code if code >= 0 else 128 - code
        except ChildProcessError:
            return


def _become(command: list[str]) -> int:
    """Replace this process by the command; return only if that fails.

    The result is then a shell's exit code: 127 if there is no such program, otherwise 126.
    """
    try:
        os.execvp(command[0], command)  # noqa: S606  # a shell would drop signals
    except FileNotFoundError:
        status, why = 127, "the image has no such program"
    except OSError as error:
        status, why = 126, error.strerror or str(error)
    text = (
        f"smdist-init: the command {command[0]!r} cannot be run: {why}."
        " Correct the container's command.\n"
    )
    os.write(2, text.encode("utf-8", "backslashreplace"))
    return status


def _adopt() -> None:
    """Make this process the new parent of each descendant whose parent ends.

    Does nothing in process 1, because the kernel gives orphans to process 1 anyway.
    """
    if os.getpid() != 1:
        from smdist.launch.process_control import adopt_orphans

        adopt_orphans()


def _lead(mask: set[int | signal.Signals]) -> None:
    """Prepare the child process, in which this function runs, for the command.

    Put the process into a process group of its own, in the foreground of the terminal. The command
    then receives Ctrl-C once, from the terminal. Restore the default handlers of signals that
    Python ignores, and set the signal mask `mask`.
    """
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        if os.tcgetpgrp(0) == os.getpgid(os.getppid()):
            os.tcsetpgrp(0, os.getpid())
    except OSError:  # there is no terminal
        pass
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python has set these to be ignored
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
    """Send SIGKILL to the remaining descendants until none is left, for at most 5 seconds."""
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
