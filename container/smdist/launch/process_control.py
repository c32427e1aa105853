# SPDX-License-Identifier: Apache-2.0
"""Functions around Linux system calls, with which a process ends all its descendants."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
LAUNCHER_SIGNALS: Final = (*_STOPS, signal.SIGCHLD)  # signals that a launcher reads
_MAX_SIGNALS: Final = 4096
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: signal.Signals) -> Callable[[], None]:
    """Return a `preexec_fn` for Popen: the child receives signal `number` when its parent ends.

    If the parent has ended before this takes effect, the child kills itself.
    """
    parent = os.getpid()

    def set_death_signal() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return set_death_signal


@contextmanager
def signal_socket(*numbers: signal.Signals) -> Iterator[socket.socket]:
    """Yield a socket from which each of these signals is read as one byte, its number.

    A selector can then wait for signals together with other sockets.
    """
    here, there = socket.socketpair()
    there.setblocking(False)
    with here, there:
        signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)
        try:
            yield here
        finally:
            signal.set_wakeup_fd(-1)


def read_stop_signal(signals: socket.socket) -> int:
    """Return the number of SIGTERM or SIGINT, if one has arrived at `signals`; else 0.

    The function does not wait. `signals` is a socket from `signal_socket`.
    """
    try:
        numbers = signals.recv(_MAX_SIGNALS, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return 0
    return next((number for number in numbers if number in _STOPS), 0)


def adopt_orphans() -> None:
    """Make this process the new parent of each descendant whose parent ends."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants(timeout_seconds: float = 5.0) -> None:
    """Send SIGKILL to all descendants until none is left, or until the timeout.

    `adopt_orphans` must have been called before. A process in uninterruptible sleep survives.
    """
    import psutil  # imported here, because the guard imports this module and must start fast

    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        below = psutil.Process().children(recursive=True)
        for process in below:
            try:
                process.kill()
            except psutil.Error:
                continue
        reap()
        if not below:
            return
        time.sleep(0.005)


def reap() -> None:
    """Collect the exit status of all children that have ended, so that no zombies are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def end_by(number: int) -> None:
    """End this process by signal `number`, without a core dump."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
