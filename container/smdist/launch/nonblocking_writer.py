# SPDX-License-Identifier: Apache-2.0
"""Writes to a pipe whose reader may be slow, may not read at all, or may have ended.

The guards of all ranks of a host write to the launcher's stdout and stderr, line by line under
one file lock. A write that blocks would delay signals and deadlines of its process, and all
guards that wait for the lock.
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
    """Queue of bytes that a thread of its own writes to a file descriptor.

    If nothing reads these bytes, only this thread is blocked, not the caller's.

    Args:
        target: The file descriptor to write to.
        lock: File to lock while lines are written, or None.

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
        """Wait until all queued data is written; return False if it is not after `seconds`."""
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
    """Write `data` to a file descriptor so that no other guard's output splits its lines.

    `lock` is the descriptor of a file that all guards lock while they write, or None. It is
    released while the pipe has no space. Data that is not written after `seconds` is dropped,
    and so is data whose reader has ended.
    """
    deadline = time.monotonic() + seconds
    view = memoryview(data)
    try:
        while view and time.monotonic() < deadline:
            view = view[_write_lines(target, view, lock, deadline) :]
    except OSError:
        return


def _write_lines(target: int, data: memoryview, lock: int | None, deadline: float) -> int:
    """Write lines under the lock while the pipe has space; return the number of bytes written.

    If only a part of a line fits, wait for more space, at most until `deadline`, a time of
    time.monotonic().
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
    """Lock the file if it becomes free within 0.1 s; return True if it is locked.

    `lock` is the file's descriptor. If it is None, no lock is needed and the result is True.
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
    """Wait at most `seconds` until a write of PIPE_BUF bytes would not block; return True then.

    The result is also True if the reader has ended, because the write then fails at once. It is
    False after `seconds`.
    """
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    return bool(poll.poll(1000 * max(0.0, seconds)))


def _write(target: int, data: memoryview) -> int:
    try:
        return os.write(target, data)
    except BlockingIOError:  # another writer filled the space first
        return 0
