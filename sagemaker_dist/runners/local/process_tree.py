# SPDX-License-Identifier: Apache-2.0
"""Control over all processes of a job, so that none keeps running after the job.

When a parent process ends, Linux gives its children a new parent: the nearest ancestor that is a
child subreaper (prctl(2), PR_SET_CHILD_SUBREAPER). The supervisor is a child subreaper. So all
processes that a rank forked stay descendants of the supervisor.
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
_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process a child subreaper: descendants whose parent ends become its children.

    This does nothing on other systems than Linux.

    Raises:
        OSError: Linux refuses the call.
    """
    if not _IS_LINUX:
        return
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def hide_memory() -> None:
    """Make Linux refuse other processes the memory and the environment of this process.

    Only root may then trace this process, or read its /proc/PID/mem and /proc/PID/environ. Programs
    that this process starts are not affected.
    """
    if _IS_LINUX:
        _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def die_with_parent() -> None:
    """Make Linux send SIGTERM to this process when the thread that started it ends.

    This is for the argument `preexec_fn` of subprocess.Popen.
    """
    if _IS_LINUX:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def kill_descendants(deadline_seconds: float = 10.0) -> bool:
    """Kill all descendants of this process, and return whether all have ended.

    A process may fork while it is being killed. So this repeats until no descendant is left, or
    until `deadline_seconds` have passed. Exit codes are not available afterwards.
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


def kill_marked(name: str, value: str, deadline_seconds: float = 10.0) -> bool:
    """Kill the descendants of this process that have a variable in their environment.

    Args:
        name: Name of the variable.
        value: Its value.
        deadline_seconds: Seconds after which this gives up.

    Returns whether all have ended. Exit codes of children stay available.
    """
    deadline = time.monotonic() + deadline_seconds
    while marked := [each for each in _descendants() if _variable(each, name) == value]:
        for process in marked:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        value: str | None = process.environ().get(name)
    except (psutil.Error, OSError):  # the process has ended
        return None
    return value


def _collect() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
