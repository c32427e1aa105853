# SPDX-License-Identifier: Apache-2.0
"""Names and atomic writing of checkpoint files.

A file is written completely or not at all. The paths are those of SMP's checkpoints, as in this
example:

path/
  newest            contains the newest tag; only people and other programs read it
  10_partial/       checkpoint of tag "10", written by all ranks
    3f_0_0.distcp   values of rank 0; all names begin with the number of the save
    3f.metadata     list of all values, with the file and position of each; written after them
    .metadata       the same, under PyTorch's name for it
  10                checkpoint of tag "10" in one file (partial=False)
"""

from __future__ import annotations

import errno
import os
import re
import stat
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from sagemaker_dist.errors import OptionError

METADATA: Final = ".metadata"
SUFFIX: Final = ".distcp"
NEWEST: Final = "newest"
PARTIAL: Final = "_partial"
_PART: Final = ".part"
_TEMPORARY: Final = re.compile(rf"\..+\.[0-9a-f]{{12}}{re.escape(_PART)}", re.DOTALL)
_MOST_TAG_BYTES: Final = 1024  # a file name has at most 255 bytes


def replace_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file atomically: to a temporary file, which is flushed and renamed over the old one.

    The temporary file has a unique name, so that two writers never write to the same one.

    Args:
        path: File to write; its folder exists.
        write: Function that writes the contents to an open file.
    """
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{_PART}")
    try:
        with part.open("xb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the contents of a regular file; a link to one is followed.

    A pipe would make its reader wait, and a device such as /dev/zero has no end.

    Args:
        path: File to read.
        max_bytes: Largest size of the file.

    Raises:
        OSError: The file is missing, cannot be read, is larger, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if found.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes", str(path))
        return stream.read()


def remove_temporary_files(folder: Path) -> None:
    """Remove the temporary files of writers that were killed; no other writer may be at work."""
    for each in folder.glob(f".*{_PART}"):
        if _TEMPORARY.fullmatch(each.name):
            each.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the list of a folder's file names to disk; a flush of the files does not do this."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_tag(tag: object) -> str:
    """Check the tag of a checkpoint, and return it as a file name.

    Args:
        tag: Name of the checkpoint: a string or an integer.

    Raises:
        OptionError: The tag is no valid file name.
    """
    text = str(tag)
    is_name = isinstance(tag, str | int) and not isinstance(tag, bool)
    is_free = text not in ("", NEWEST) and not text.startswith(".")
    if not is_name or not is_free or "/" in text or "\0" in text or text.endswith(PARTIAL):
        raise OptionError(
            f"tag is {tag!r}",
            f"it has to be a file name, other than {NEWEST!r}, without '/', and it must not begin "
            f"with '.' or end with {PARTIAL!r}",
            'Pass for example "epoch3" or 1000',
            about="tag",
        )
    return text


def partial_folder(path: Path, tag: str) -> Path:
    """Return the folder of the partial checkpoint `tag`, to which all ranks write.

    Args:
        path: Folder of checkpoints.
        tag: Name of the checkpoint.
    """
    return path / f"{tag}{PARTIAL}"


def partial_folders(path: Path) -> dict[str, Path]:
    """Return the folders in `path` that have the name of a partial checkpoint's, by tag."""
    found = sorted(each for each in path.glob(f"?*{PARTIAL}") if each.is_dir())
    return {each.name.removesuffix(PARTIAL): each for each in found}


def write_newest(path: Path, tag: str) -> None:
    """Record, in the file "newest" of `path`, that checkpoint `tag` is the newest one."""
    replace_file(path / NEWEST, lambda stream: stream.write(tag.encode()))


def read_newest(path: Path) -> str | None:
    """Return the tag in the file "newest" of `path`; None without this file.

    A file with other contents than a tag counts as one with the tag "?".
    """
    try:
        return check_tag(read_file(path / NEWEST, _MOST_TAG_BYTES).decode().strip())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return "?"
