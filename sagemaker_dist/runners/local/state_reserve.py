# SPDX-License-Identifier: Apache-2.0
"""Space on the disk that is reserved for the last state of a job.

The file is written before the job starts. If the disk is full when the job ends, the last state is
written over its content, which takes no further space. The content is random at first, so that a
file system that compresses files takes the whole space, too. Where even this fails, the file is
removed; a job without it has ended, but nobody knows how.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_NAME: Final = "state.reserve"
_BYTES: Final = 1 << 15
_EMPTY: Final = b"\n"  # first byte before a state is written


def reserve(folder: Path) -> None:
    """Write the file for the last state of the job in `folder`.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder / _NAME, flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_EMPTY + os.urandom(_BYTES - 1))
        file.flush()
        os.fsync(descriptor)


def is_reserved(folder: Path) -> bool:
    """Return whether the file exists: it is removed with the job's end."""
    return (folder / _NAME).exists()


def release(folder: Path) -> None:
    """Remove the file, if it exists."""
    (folder / _NAME).unlink(missing_ok=True)


def write_reserved(folder: Path, document: Mapping[str, Any]) -> None:
    """Write a state over the content of the file.

    A state that is longer than the file loses its `cause`.

    Raises:
        OSError: The file is missing, or cannot be written.
    """
    text = json.dumps(document).encode()
    if len(text) > _BYTES:
        text = json.dumps({**document, "cause": {}}).encode()
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(folder / _NAME, flags), "wb") as file:
        file.write(text.ljust(_BYTES))
        file.flush()
        os.fsync(file.fileno())


def read_reserved(folder: Path) -> dict[str, Any] | None:
    """Return the state that was written over the file's content; None if there is none."""
    try:
        text = (folder / _NAME).read_bytes()
    except FileNotFoundError:
        return None
    return None if text.startswith(_EMPTY) else json.loads(text)
