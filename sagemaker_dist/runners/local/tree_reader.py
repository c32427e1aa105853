# SPDX-License-Identifier: Apache-2.0
"""Reading and removal of a host's tree, its /opt/ml, without following links of the host.

A container writes its tree as the same user, and it may put links to files of this machine, FIFOs
and devices anywhere in the tree, also between a check and the use of a path. Therefore each part of
a path is opened relative to the descriptor of the directory above it, with O_NOFOLLOW, and files
are checked again after they were opened. A FIFO is never waited for.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from sagemaker_dist.errors import JobError

MAX_DEPTH: Final = 200  # each open directory takes a descriptor
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEntry:
    """A file, directory, link or special file of a host's tree.

    Attributes:
        root: Root directory of the tree.
        path: Path of the entry below `root`.
        name: Path of the entry below the directory that was listed.
        status: Its status, without following a link.
        target: Text of a link; "" for other entries.
    """

    root: Path
    path: str
    name: str
    status: os.stat_result
    target: str = ""

    @property
    def is_directory(self) -> bool:
        """Return whether this is a directory."""
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        """Return whether this is a symbolic link."""
        return stat.S_ISLNK(self.status.st_mode)

    @property
    def is_special(self) -> bool:
        """Return whether this is a FIFO, a socket or a device."""
        is_file = stat.S_ISREG(self.status.st_mode)
        return not (is_file or self.is_directory or self.is_link)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the file for reading, and close it at the end of the `with` block.

        Raises:
            OSError: It is no regular file any more, or cannot be read.
        """
        with os.fdopen(open_file(self.root, self.path), "rb") as file:
            yield file


def open_directory(root: Path, parts: Sequence[str] = ()) -> int:
    """Return the descriptor of a directory below `root`; the caller closes it.

    `parts` are the names of the directories on the way, without "..".

    Raises:
        OSError: `root` or a part is missing, or is a link or another file.
    """
    descriptor = os.open(root, _DIRECTORY)
    for part in parts:
        try:
            below = os.open(part, _DIRECTORY, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def open_file(root: Path, path: str) -> int:
    """Return the descriptor of a regular file at `path` below `root`; the caller closes it.

    Raises:
        OSError: A part of the path is missing or is a link, or the file is no regular file.
    """
    *above, name = PurePosixPath(path).parts
    directory = open_directory(root, above)
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        _require_file(status, path)  # before the opening, which acts on some devices
        descriptor = os.open(name, _FILE, dir_fd=directory)
    finally:
        os.close(directory)
    try:
        _require_file(os.fstat(descriptor), path)  # a host may have replaced it in between
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_start(root: Path, path: str, max_bytes: int) -> bytes:
    """Return at most the first `max_bytes` bytes of a file; b"" if there is no regular file."""
    try:
        with os.fdopen(open_file(root, path), "rb") as file:
            return file.read(max_bytes)
    except OSError:
        return b""


def entries_below(root: Path, directory: str) -> Iterator[TreeEntry]:
    """Yield everything in a directory of a tree and below it, sorted by name.

    Each directory comes before its own entries. `directory` is a path below `root`.

    Raises:
        JobError: The directory or one above it is a link or a file, or directories are nested
            deeper than 200.
        OSError: The directory is missing, or a directory cannot be read.
    """
    parts = PurePosixPath(directory).parts
    try:
        descriptor = open_directory(root, parts)
    except OSError as error:
        if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise
        raise _replaced(root, parts) from error
    try:
        for name, status, target in _walk(descriptor, "", parts, MAX_DEPTH):
            path = f"{directory}/{name}"
            yield TreeEntry(root=root, path=path, name=name, status=status, target=target)
    finally:
        os.close(descriptor)


def remove_tree(root: Path) -> None:
    """Remove a directory and everything below it, as far as that is possible.

    Links are removed, but not followed. What cannot be removed is left.
    """
    with suppress(RecursionError):  # a host has nested a thousand directories
        shutil.rmtree(root, ignore_errors=True)


def _walk(
    directory: int, prefix: str, parts: tuple[str, ...], depth: int
) -> Iterator[tuple[str, os.stat_result, str]]:
    if not depth:
        raise JobError(
            f"the directories in {'/'.join(parts)} are nested deeper than {MAX_DEPTH}",
            "each level takes a file descriptor while the files are collected",
            "Save the files in fewer levels of directories",
            about=parts,
            kind="too_many",
        )
    for name in sorted(os.listdir(directory)):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        is_link = stat.S_ISLNK(status.st_mode)
        yield prefix + name, status, os.readlink(name, dir_fd=directory) if is_link else ""
        if stat.S_ISDIR(status.st_mode):
            below = os.open(name, _DIRECTORY, dir_fd=directory)
            try:
                yield from _walk(below, f"{prefix}{name}/", parts, depth - 1)
            finally:
                os.close(below)


def _require_file(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", path)


def _replaced(root: Path, parts: tuple[str, ...]) -> JobError:
    return JobError(
        f"{'/'.join(parts)} of {root.name} is no directory",
        "the job has replaced it, or a directory above it, by a link or a file, and links of a host"
        " are not followed",
        "Save the files into the directory that is there",
        about=parts,
        kind="link",
    )
