# SPDX-License-Identifier: Apache-2.0
"""Member of a ZIP archive as a file; only the parts that a caller needs are read.

zipfile reads and drops all bytes between two places of a member. Keras stores members without
compression, so a place in one is a place in the archive.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

_LOCAL_HEADER: Final = struct.Struct("<26xHH")  # ends with the lengths of name and extra field


@contextmanager
def opened_member(path: Path, name: str) -> Iterator[Any]:
    """Yield a member of an archive as a binary file for reading.

    Args:
        path: The archive.
        name: The member.

    Raises:
        KeyError: The archive has no such member.
        zipfile.BadZipFile: The file is no archive.
    """
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED:  # not written by Keras
            with archive.open(info) as member:
                yield member
            return
    with path.open("rb", buffering=0) as file:
        file.seek(info.header_offset)
        lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        begin = info.header_offset + _LOCAL_HEADER.size + sum(lengths)
        yield StoredMember(file, begin, info.file_size)


class StoredMember(io.RawIOBase):
    """Range of bytes of a file, as a file of its own for reading.

    Args:
        file: The file, without a buffer.
        begin: Place of the first byte.
        size: Number of bytes.
    """

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        super().__init__()
        self._file, self._begin, self._size = file, begin, size
        self._at = 0
        self.num_read = 0  # bytes so far

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte, in bytes from the first one of the range."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place, as in `io.IOBase.seek`, and return it."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(origin + offset, 0)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Read bytes into a buffer, and return their number; 0 at the end."""
        room = memoryview(buffer).cast("B")[: max(self._size - self._at, 0)]
        self._file.seek(self._begin + self._at)
        count = self._file.readinto(room)  # type: ignore[attr-defined]  # raw files have it
        self._at += count
        self.num_read += count
        return int(count)
