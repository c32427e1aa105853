# SPDX-License-Identifier: Apache-2.0
"""Folder of one launcher for its sockets and its copy of the job's secret."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

_PREFIX: Final = "smdist-launch-"
_LOCK: Final = "lock"


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder of mode 0700 in the directory for temporary files, and remove it at the end.

    A launcher that is killed cannot remove its folder. Its rank guards remove it, or the next
    launcher of this user: the kernel has then released the lock of the launcher that was killed.
    """
    remove_abandoned(Path(tempfile.gettempdir()))
    folder, lock = _make_locked()
    with lock:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _make_locked() -> tuple[Path, IO[str]]:
    """Make a folder and lock it.

    Another launcher that starts may find the folder before it is locked, and remove it: then make
    another one.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with suppress(FileNotFoundError):
            lock = (folder / _LOCK).open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
            if Path(lock.name).exists():
                return folder, lock
            lock.close()


def remove_abandoned(directory: Path) -> None:
    """Remove this user's folders of launchers that were killed, in a directory for temporary files.

    Folders of launchers that run, and folders of other users, stay.
    """
    for folder in directory.glob(f"{_PREFIX}*"):
        remove_if_abandoned(folder)


def remove_if_abandoned(folder: Path) -> bool:
    """Remove the folder of a launcher unless that launcher still runs.

    Return False if it runs, or if the folder is that of another user.
    """
    with suppress(OSError):  # in use, or of another user
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return False
        with (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
