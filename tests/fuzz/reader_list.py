# SPDX-License-Identifier: Apache-2.0
"""List of the fuzz targets in Python, and what they share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from byte_source import ByteSource

Target = Callable[[ByteSource], None]
TARGETS: dict[str, Target] = {}
FOLDER = Path(tempfile.mkdtemp(prefix="smdist-fuzz-"))
_files: dict[str, int] = {}  # open files by name


def target(function: Target) -> Target:
    TARGETS[function.__name__] = function
    return function


def run(name: str, data: bytes) -> None:
    TARGETS[name](ByteSource(data))


def written(name: str, content: str | bytes) -> Path:
    """Write a file of the input; the readers open it by its path.

    It stays open for the next input, since to open a file takes longer than to write it.
    """
    data = encoded(content) if isinstance(content, str) else content
    path = FOLDER / name
    if name not in _files:
        path.parent.mkdir(parents=True, exist_ok=True)
        _files[name] = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.ftruncate(_files[name], os.pwrite(_files[name], data, 0))
    return path


def encoded(text: str) -> bytes:
    """Return the bytes of a text in UTF-8; an input may have made it of bytes that are not."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return text.encode("utf-8", "replace")


def remove_files() -> None:
    """Remove the files of the inputs; call it when no target runs any more."""
    while _files:
        os.close(_files.popitem()[1])
    shutil.rmtree(FOLDER)
