# SPDX-License-Identifier: Apache-2.0
"""Speed of files: written to the temporary folder, and read there and in a channel's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import perf_counter
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.calibration import FolderSpeed

_BLOCK: Final = 4 << 20  # bytes
_MOST: Final = 1 << 30


def measure_disk(limit: float) -> FolderSpeed:
    """Return the speed of the disk of the temporary folder; the file that was written is removed.

    Args:
        limit: Seconds of writing; as many bytes are read again.

    Raises:
        OSError: The disk is full or broken.
    """
    block = os.urandom(_BLOCK)
    with NamedTemporaryFile(prefix="smdist-calibrate-") as file:
        begin, written = perf_counter(), 0
        while written < _MOST and (not written or perf_counter() - begin < limit):
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
            written += _BLOCK
        wrote = written / (perf_counter() - begin)
        read, seconds = _read(Path(file.name), float("inf"))
    return FolderSpeed(
        folder="disk", num_bytes=read, write_bytes_per_second=wrote,
        read_bytes_per_second=read / seconds,
    )  # fmt: skip


def check_channel(folder: Path) -> None:
    """Check that a channel's folder has a file with data.

    Raises:
        OptionError: The folder does not exist, cannot be read, or has no file with data.
    """
    if not folder.is_dir():
        what, why = f"--channel is {folder}", "it is not a folder"
        hint = "Pass the folder of a channel, such as /opt/ml/input/data/training"
        raise OptionError(what, why, hint, about="channel", kind="missing_file")
    if next(_files(folder), None) is None:
        what, why = f"--channel is {folder}", "it has no file with data that can be read"
        raise OptionError(what, why, "Pass a folder with files", about="channel", kind="empty")


def measure_channel(folder: Path, limit: float) -> FolderSpeed:
    """Return the speed of reading the files of a channel's folder, one after the other.

    Args:
        folder: Folder with at least one file.
        limit: Seconds after which no further block is read.
    """
    num_bytes, seconds = 0, 0.0
    for path in _files(folder):
        read, took = _read(path, limit - seconds)
        num_bytes, seconds = num_bytes + read, seconds + took
        if seconds >= limit or num_bytes >= _MOST:
            break
    return FolderSpeed(
        folder="channel", num_bytes=num_bytes, write_bytes_per_second=None,
        read_bytes_per_second=num_bytes / max(seconds, 1e-9),
    )  # fmt: skip


def _files(folder: Path) -> Iterator[Path]:
    """Yield the readable files with data below a folder, in the order of their names."""
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            if path.is_file() and os.access(path, os.R_OK) and path.stat().st_size:
                yield path


def _read(path: Path, limit: float) -> tuple[int, float]:
    """Return the bytes of a file that were read, and the seconds; at least one block is read.

    The file's pages are dropped from Linux's cache before, so that the disk is read.
    """
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begin, num_bytes = perf_counter(), 0
        while block := file.read(_BLOCK):
            num_bytes += len(block)
            if perf_counter() - begin >= limit or num_bytes >= _MOST:
                break
        return num_bytes, perf_counter() - begin
