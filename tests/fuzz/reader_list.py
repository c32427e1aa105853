# SPDX-License-Identifier: Apache-2.0
"""List of the fuzz targets in Python, and the files that they share."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from byte_source import ByteSource

Target = Callable[[ByteSource], None]
TARGETS: dict[str, Target] = {}
FOLDER = Path(tempfile.mkdtemp(prefix="smdist-fuzz-"))
_contents: dict[str, bytes] = {}  # of the files in memory, by path
_files: dict[str, int] = {}  # open files on disk by name


class MemoryPath(type(FOLDER)):  # type: ignore[misc] # the class of paths of this system
    """Path of a file in memory, which is read and found like one on disk, only ten times as fast.

    A test compares the two.
    """

    def read_bytes(self) -> bytes:
        try:
            return _contents[str(self)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self)) from None

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        text = self.read_bytes().decode(encoding or "utf-8", errors or "strict")
        return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text

    def is_file(self) -> bool:
        return str(self) in _contents

    def is_dir(self) -> bool:
        return False


MEMORY = MemoryPath("/memory")


def target(function: Target) -> Target:
    TARGETS[function.__name__] = function
    return function


def run(name: str, data: bytes) -> None:
    TARGETS[name](ByteSource(data))


def kept(path: MemoryPath, content: str | bytes) -> MemoryPath:
    """Set the content of a file in memory; most readers take its path."""
    _contents[str(path)] = encoded(content) if isinstance(content, str) else content
    return path


def written(name: str, content: str | bytes) -> Path:
    """Write a file on disk, for readers that open it in their own way.

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
