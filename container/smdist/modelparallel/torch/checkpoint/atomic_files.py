# SPDX-License-Identifier: Apache-2.0
"""Names and atomic writing of checkpoint files.

A file is written completely or not at all. The paths are those of SMP's checkpoints, as in this
example:

path/
  newest            contains the newest tag
  10_partial/       checkpoint of tag "10", written by all ranks
    .metadata       list of all values, with the file and position of each; this file is
                    written last, so a checkpoint without it is incomplete
    3f_0_0.distcp   values of rank 0
  10                checkpoint of tag "10" in one file (partial=False)
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError

METADATA: Final = ".metadata"
SUFFIX: Final = ".distcp"
_NEWEST: Final = "newest"
_PARTIAL: Final = "_partial"
_PART: Final = ".part"


def replace_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file atomically: to a temporary file, which is flushed and renamed over the old one.

    Args:
        path: File to write; its folder exists.
        write: Function that writes the contents to an open file.
    """
    part = path.with_name(f".{path.name}{_PART}")
    try:
        with part.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


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
    is_free = text not in ("", _NEWEST) and not text.startswith(".")
    if not is_name or not is_free or "/" in text or "\0" in text or text.endswith(_PARTIAL):
        raise OptionError(
            f"tag is {tag!r}",
            f"it has to be a file name, other than {_NEWEST!r}, without '/', and it must not begin "
            f"with '.' or end with {_PARTIAL!r}",
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
    return path / f"{tag}{_PARTIAL}"


def write_newest(path: Path, tag: str) -> None:
    """Record, in the file "newest" of `path`, that checkpoint `tag` is the newest one."""
    replace_file(path / _NEWEST, lambda stream: stream.write(tag.encode()))


def read_newest(path: Path) -> str:
    """Return the tag of the newest checkpoint in `path`, from the file "newest".

    Raises:
        CheckpointError: There is no such file.
    """
    try:
        return (path / _NEWEST).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        found = [*partial_tags(path), *full_tags(path)]
        hint = f"Pass tag=, one of {_listed(found)}" if found else "Pass the path that was saved to"
        raise CheckpointError(
            f"there is no newest checkpoint in {str(path)!r}",
            f"the folder has no file {_NEWEST!r}",
            hint,
            about="path",
            kind="missing",
        ) from None


def new_save() -> str:
    """Return a unique hexadecimal number for a new save, larger than all earlier numbers."""
    return f"{time.time_ns() // 1_000_000:012x}{uuid.uuid4().hex[:6]}"


def partial_tags(path: Path) -> list[str]:
    """Return the tags of the complete partial checkpoints in `path`, the newest first.

    A partial checkpoint is a folder to which all ranks write. Each file name in it begins with a
    number that grows from save to save. The tags are sorted by this number, since the dates of
    files change when the files are copied.
    """
    found = [each.parent for each in path.glob(f"*{_PARTIAL}/{METADATA}")]
    dated = sorted(((_last_save(folder), folder.name) for folder in found), reverse=True)
    return [name.removesuffix(_PARTIAL) for _, name in dated]


def _last_save(folder: Path) -> str:
    return max((each.name for each in folder.glob(f"*_0_0{SUFFIX}")), default="")


def full_tags(path: Path) -> list[str]:
    """Return the tags of the checkpoints in `path` that rank 0 wrote as a single file."""
    if not path.is_dir():
        return []
    return [
        each.name
        for each in sorted(path.iterdir())
        if each.is_file() and each.name != _NEWEST and not each.name.startswith(".")
    ]


def absent(path: Path, tag: str, *, partial: bool) -> CheckpointError:
    """Return the error for a checkpoint that does not exist; its hint lists existing ones.

    Args:
        path: Folder of checkpoints.
        tag: Tag of the missing checkpoint.
        partial: True for a checkpoint that all ranks write, False for one that is a single file.
    """
    there, beside = partial_tags(path), full_tags(path)
    if tag in (beside if partial else there):
        hint = f"Pass partial={not partial}, with which it was saved"
    else:
        tags = there if partial else beside
        hint = f"There are {_listed(tags)}" if tags else "Pass the path that was saved to"
    half = partial and partial_folder(path, tag).is_dir()
    why = (
        f"its folder has no file {METADATA}, so it was not written completely"
        if half
        else f"{str(path)!r} has none with this tag"
    )
    what = f"there is no {_kind(partial)} checkpoint {tag!r}"
    kind, about = "incomplete" if half else "missing", "tag"
    if tag in (beside if partial else there):
        about = "partial"
    return CheckpointError(what, why, hint, about=about, kind=kind)


def _kind(partial: bool) -> str:
    return "partial" if partial else "full"


def _listed(tags: list[str]) -> str:
    return ", ".join(map(repr, tags[:8])) + ", ..." * (len(tags) > 8)
