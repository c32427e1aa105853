# SPDX-License-Identifier: Apache-2.0
"""Writes to a pipe whose reader may be slow, may not read at all, or may have ended.

The guards of all ranks of a host write to the launcher's stdout and stderr, line by line under
one file lock. If a write blocked, its process could not handle signals and time limits, and all
other guards would wait for the lock.
"""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

MAX_WAITING_BYTES: Final = 1 << 20
_WAIT_SECONDS: Final = 0.1  # for space in the pipe, and for the lock
_LINE_SECONDS: Final = 1.0  # for the rest of a line longer than PIPE_BUF


class BackgroundWriter:
    """Queue of bytes that a background thread writes to a file descriptor.

    If no process reads these bytes, only the background thread is blocked, not the caller's.

    Args:
        target: The file descriptor to write to.
        lock: Path of the file to lock while lines are written; None for no lock.

    Thread safety: only one thread may call `put`, `is_full` and `wait`.
    """

    def __init__(self, target: int, lock: Path | None) -> None:
        self._target = target
        self._lock = os.open(lock, os.O_RDONLY | os.O_CLOEXEC) if lock else None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._change = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def is_full(self) -> bool:
        """Return True if a mebibyte or more is queued; the caller should then `put` no more."""
        with self._change:
            return self._waiting_bytes >= MAX_WAITING_BYTES

    def put(self, data: bytes) -> None:
        """Queue `data`, which the thread writes in order."""
        if data:
            with self._change:
                self._waiting.append(data)
                self._waiting_bytes += len(data)
                self._change.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` until all queued data is written; return True if all is."""
        with self._change:
            return self._change.wait_for(lambda: not self._waiting, max(0.0, seconds))

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: bool(self._waiting))
                data = self._waiting[0]
            write_whole(self._target, data, self._lock)
            with self._change:
                self._waiting.popleft()
                self._waiting_bytes -= len(data)
                self._change.notify_all()


def write_whole(target: int, data: bytes, lock: int | None, seconds: float = float("inf")) -> None:
    """Write lines to a pipe, under a lock so that output of other processes does not split them.

    Lines that are not written after `seconds` are dropped. If the pipe's reader has ended, all
    lines are dropped.

    Args:
        target: File descriptor of the pipe.
        data: Lines to write.
        lock: Descriptor of the file to lock while writing; None for no lock.
        seconds: Maximum number of seconds to wait.
    """
    deadline = time.monotonic() + seconds
    view = memoryview(data)
    try:
        while view and time.monotonic() < deadline:
            view = view[_write_lines(target, view, lock, deadline) :]
    except OSError:
        return


def _write_lines(target: int, data: memoryview, lock: int | None, deadline: float) -> int:
    """Write lines to `target` while the pipe has space; return the number of bytes written.

    If only a part of a line fits, wait for more space until `deadline`, at most one second.

    Args:
        target: File descriptor of the pipe.
        data: Lines to write.
        lock: Descriptor of the file to lock during the call; None for no lock.
        deadline: Time of time.monotonic().
    """
    if not _has_space(target, _WAIT_SECONDS) or not _take(lock):
        return 0
    written = 0
    try:
        wait_seconds = 0.0
        while written < len(data) and _has_space(target, wait_seconds):
            # a pipe that has space accepts PIPE_BUF bytes at once
            piece = data[written : written + select.PIPE_BUF]
            end = max(bytes(piece).rfind(b"\n"), bytes(piece).rfind(b"\r")) + 1
            written += _write(target, piece[: end or len(piece)])
            is_whole = written and data[written - 1] in b"\r\n"
            wait_seconds = 0.0 if is_whole else min(_LINE_SECONDS, deadline - time.monotonic())
        return written
    finally:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_UN)


def _take(lock: int | None) -> bool:
    """Lock the file with the descriptor `lock`, and return True.

    Return False if another process holds the lock for more than 0.1 s. If `lock` is None, return
    True without locking.
    """
    if lock is None:
        return True
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        else:
            return True


def _has_space(target: int, seconds: float) -> bool:
    """Wait until a write of PIPE_BUF bytes to the pipe `target` would not block.

    Return True, also if the reader has ended, because the write then fails at once. Return False
    if the pipe still has no space after `seconds`.
    """
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    return bool(poll.poll(1000 * max(0.0, seconds)))


def _write(target: int, data: memoryview) -> int:
    try:
        return os.write(target, data)
    except BlockingIOError:  # another writer filled the space first
        return 0
