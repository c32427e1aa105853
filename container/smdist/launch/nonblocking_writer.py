# SPDX-License-Identifier: Apache-2.0
"""Output to a reader that may be slow, may not read at all, or may be gone.

All ranks of a host write to the launcher's two streams, line by line under one lock. A write
that blocks would delay the process's signals and deadlines, and the writers behind the lock.
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
_PATIENCE_SECONDS: Final = 0.1
_LINE_SECONDS: Final = 1.0  # seconds for the rest of a line longer than PIPE_BUF


class Outlet:
    """Writer with a thread of its own, so that a reader that does not read blocks nobody.

    Thread safety: `put`, `is_full` and `wait` belong to the owner's thread.
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
        """Tell whether the owner should stop putting data for now."""
        with self._change:
            return self._waiting_bytes >= MAX_WAITING_BYTES

    def put(self, data: bytes) -> None:
        """Queue `data` to be written."""
        if data:
            with self._change:
                self._waiting.append(data)
                self._waiting_bytes += len(data)
                self._change.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until everything is written; return False after `seconds`."""
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
    """Write `data` so that no other guard's output falls within its lines.

    A reader that is gone is no error. While a reader does not read, the lock is released until
    there is space. Data that is not written after `seconds` is dropped.
    """
    deadline = time.monotonic() + seconds
    view = memoryview(data)
    try:
        while view and time.monotonic() < deadline:
            view = view[_write_lines(target, view, lock, deadline) :]
    except OSError:
        return


def _write_lines(target: int, data: memoryview, lock: int | None, deadline: float) -> int:
    """Write lines while there is space; return the number of bytes written."""
    if not _has_room(target, _PATIENCE_SECONDS) or not _take(lock):
        return 0
    written = 0
    try:
        patience = 0.0
        while written < len(data) and _has_room(target, patience):
            piece = data[
                written : written + select.PIPE_BUF
            ]  # a pipe with space takes this many bytes at once
            end = max(bytes(piece).rfind(b"\n"), bytes(piece).rfind(b"\r")) + 1
            written += _write(target, piece[: end or len(piece)])
            is_whole = written and data[written - 1] in b"\r\n"
            patience = 0.0 if is_whole else min(_LINE_SECONDS, deadline - time.monotonic())
        return written
    finally:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_UN)


def _take(lock: int | None) -> bool:
    """Take the lock if it becomes free soon; return whether it was taken."""
    if lock is None:
        return True
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        else:
            return True


def _has_room(target: int, seconds: float) -> bool:
    """Tell whether a write of PIPE_BUF bytes returns at once; True for a reader that is gone."""
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    return bool(poll.poll(1000 * max(0.0, seconds)))


def _write(target: int, data: memoryview) -> int:
    try:
        return os.write(target, data)
    except BlockingIOError:  # another writer filled the space first
        return 0
