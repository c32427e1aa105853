# SPDX-License-Identifier: Apache-2.0
"""Keeping hold of every process of a job, so that none is left behind.

Linux gives a process whose parent died to the nearest ancestor that asked for
it (prctl(2), PR_SET_CHILD_SUBREAPER): with the supervisor as that ancestor,
whatever a rank forked is found among the supervisor's descendants.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from typing import Final

import psutil

_IS_LINUX: Final = sys.platform == "linux"
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """From now on, orphans among the descendants become children of this process.

    Linux alone can do this, and it alone runs hosts as processes.
    """
    if not _IS_LINUX:
        return
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """Get SIGTERM when the thread that started this process ends (for preexec_fn)."""
    if _IS_LINUX:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def kill_descendants(deadline_seconds: float = 10.0) -> bool:
    """Kill every descendant of this process and collect it; False if one stays.

    A process may fork while it is being killed, so this goes on until none is left.
    Exit codes are lost: call it when they no longer matter.
    """
    deadline = time.monotonic() + deadline_seconds
    while family := psutil.Process().children(recursive=True):
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        _collect()
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _collect() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
