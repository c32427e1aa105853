# SPDX-License-Identifier: Apache-2.0
"""List of the fuzz targets in Python, and the files that they share."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import PosixPath

from byte_source import ByteSource

Target = Callable[[ByteSource], None]
TARGETS: dict[str, Target] = {}
_contents: dict[str, bytes] = {}  # of the files in memory, by path


class MemoryPath(PosixPath):
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


def encoded(text: str) -> bytes:
    """Return the bytes of a text in UTF-8; an input may have made it of bytes that are not."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return text.encode("utf-8", "replace")
