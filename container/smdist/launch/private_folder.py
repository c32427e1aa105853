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
from typing import Final

_PREFIX: Final = "smdist-launch-"
_LOCK: Final = "lock"


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder of mode 0700 in the directory for temporary files, and remove it at the end.

    A launcher that is killed cannot remove its folder. The next launcher of this user removes it:
    the kernel has then released the lock that a launcher holds while it runs.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX) as name,
        (Path(name) / _LOCK).open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def _remove_abandoned(directory: Path) -> None:
    for folder in directory.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # in use, or of another user
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
