# SPDX-License-Identifier: Apache-2.0
"""Control over all processes of a job, so that none is left behind.

When a parent dies, Linux gives its children to the nearest ancestor that is a child
subreaper (prctl(2), PR_SET_CHILD_SUBREAPER). The supervisor is one, so all processes
that a rank forked stay among the supervisor's descendants.
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
    """Make this process the subreaper: orphaned descendants become its children.

    Only Linux has this, and hosts run as processes only on Linux.
    """
    if not _IS_LINUX:
        return
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """Request SIGTERM for this process when the thread that started it ends (for preexec_fn)."""
    if _IS_LINUX:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def kill_descendants(deadline_seconds: float = 10.0) -> bool:
    """Kill every descendant of this process and collect it; return False if one stays.

    The loop runs until no descendant is left, because a process may fork while it is being killed.
    Exit codes are lost.
    """
    deadline = time.monotonic() + deadline_seconds
    while descendants := psutil.Process().children(recursive=True):
        for process in descendants:
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
