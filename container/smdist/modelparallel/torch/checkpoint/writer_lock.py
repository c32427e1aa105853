# SPDX-License-Identifier: Apache-2.0
"""Lock of a folder of checkpoints, which one writer holds while it saves.

A job that lingers and the job that replaces it may save to one folder. Without a lock, each would
remove the other's files as leftovers. The kernel releases the lock when its holder dies, so it is
never stale. Hosts with folders of their own have no common lock; there, names of files differ from
save to save, so that copies of several writers can be in one folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError

WAIT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05
_NAME: Final = ".lock"
_UNSUPPORTED: Final = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL}


class WriterLock:
    """Lock of a folder, held by this process from `acquire` to `release`.

    Attributes:
        excludes: True if other writers are kept out. False before `acquire`, and if the file
            system has no locks.
    """

    def __init__(self, path: Path) -> None:
        self._file = path / _NAME
        self._descriptor = -1
        self.excludes = False

    def acquire(self, wait_seconds: float | None = None) -> None:
        """Lock the folder, which is created if needed; wait while another writer has it.

        Args:
            wait_seconds: Longest time to wait; None waits for WAIT_SECONDS.

        Raises:
            CheckpointError: Another writer is still saving after this time.
            OSError: The folder cannot be written to.
        """
        self._file.parent.mkdir(parents=True, exist_ok=True)
        limit = WAIT_SECONDS if wait_seconds is None else wait_seconds
        end = time.monotonic() + limit
        while not self._try():
            if time.monotonic() >= end:
                raise self._busy(limit)
            time.sleep(_POLL_SECONDS)

    def _try(self) -> bool:
        """Return True if the folder is locked now, or if its file system has no locks."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._file, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in _UNSUPPORTED:
                return True
            if error.errno == errno.EWOULDBLOCK:
                return False
            raise
        num_names = os.fstat(descriptor).st_nlink
        if num_names == 0:  # removed by its last holder
            os.close(descriptor)
            return False
        self._descriptor, self.excludes = descriptor, True
        if num_names == 1:  # otherwise the file has another purpose, too
            with suppress(OSError):  # the name is for messages only, and the disk may be full
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        return True

    def release(self) -> None:
        """Unlock the folder, and remove the lock's file; do nothing if it is not locked."""
        if self._descriptor >= 0:
            self._file.unlink(missing_ok=True)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
        self._descriptor, self.excludes = -1, False

    def _busy(self, seconds: float) -> CheckpointError:
        try:
            holder = self._file.read_text(encoding="utf-8") or "another process"
        except (OSError, ValueError):
            holder = "another process"
        return CheckpointError(
            f"{str(self._file.parent)!r} is locked",
            f"{holder} has been saving a checkpoint to it for {seconds:g} s",
            "Stop the other job, or save to another path",
            about="path",
            kind="busy",
        )
