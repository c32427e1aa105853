# SPDX-License-Identifier: Apache-2.0
"""Files of the launcher in directories in which the script may write, too."""

from __future__ import annotations

import os
from pathlib import Path


def write_result(path: Path, text: str) -> None:
    """Replace the file `path` by one with `text`, in UTF-8; the directory is made if missing.

    What is at `path` is never opened: a FIFO would block the launcher for ever, and a link would
    make it write to another file.

    Raises:
        OSError: The disk is full, `path` is a directory, or its directory cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(unfinished, flags, 0o644), "w", encoding="utf-8") as file:
            file.write(text)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
