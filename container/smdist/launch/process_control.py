# SPDX-License-Identifier: Apache-2.0
"""Linux system calls that leave no process behind."""

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
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: signal.Signals) -> Callable[[], None]:
    """Return a `preexec_fn` for Popen: the child gets signal `number` when its parent ends.

    The parent's process number is compared, in case the parent has ended before the call.
    """
    parent = os.getpid()

    def ask_kernel() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return ask_kernel


@contextmanager
def hear_signals(*numbers: signal.Signals) -> Iterator[socket.socket]:
    """Yield a socket that delivers each signal's number as one byte, to wait on in a loop."""
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


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants(timeout_seconds: float = 5.0) -> None:
    """Send SIGKILL to every descendant until none is left.

    Requires `adopt_orphans`. A process in uninterruptible sleep remains after the timeout.
    """
    import psutil  # the guard imports this module and must start fast

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
    """Reap adopted processes that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def end_by(number: int) -> None:
    """End this process by a signal, without a core dump."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
