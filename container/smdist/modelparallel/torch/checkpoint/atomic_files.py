# SPDX-License-Identifier: Apache-2.0
"""Files that exist completely or not at all, under the file names of SMP.

path/
  newest            names the newest tag
  10_partial/       a checkpoint of tag "10", written by all ranks
    .metadata       its contents and their places: written last, so a checkpoint without it
                    is incomplete
    3f_0_0.distcp   values, from rank 0
  10                a checkpoint of tag "10" in one file (partial=False)
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
    """Write a temporary file, flush it to disk, then rename it over the old one."""
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
    """Flush the names in a folder to disk; a flush of the files does not do so."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_tag(tag: object) -> str:
    """Return a tag as text that can be a file name.

    Raises:
        OptionError: The tag is no valid file name.
    """
    text = str(tag)
    is_name = isinstance(tag, str | int) and not isinstance(tag, bool)
    is_free = text not in ("", _NEWEST) and not text.startswith(".")
    if not is_name or not is_free or "/" in text or "\0" in text or text.endswith(_PARTIAL):
        raise OptionError(
            f"the tag of a checkpoint is {tag!r}",
            f"files are named after it, beside {_NEWEST!r} and folders that end in {_PARTIAL!r}",
            'Name it by what it is of: "epoch3" or 1000',
        )
    return text


def partial_folder(path: Path, tag: str) -> Path:
    """Return the folder in which the ranks write a checkpoint."""
    return path / f"{tag}{_PARTIAL}"


def write_newest(path: Path, tag: str) -> None:
    """Record a tag as that of the newest checkpoint."""
    replace_file(path / _NEWEST, lambda stream: stream.write(tag.encode()))


def read_newest(path: Path) -> str:
    """Return the tag of the newest checkpoint.

    Raises:
        CheckpointError: There is no checkpoint.
    """
    try:
        return (path / _NEWEST).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        found = [*partial_tags(path), *full_tags(path)]
        hint = f"Pass tag=, one of {_listed(found)}" if found else "Pass the path that was saved to"
        raise CheckpointError(
            f"no checkpoint in {str(path)!r}", f"it has no file {_NEWEST!r}", hint
        ) from None


def new_save() -> str:
    """Return a unique number for a save, larger than the numbers of earlier saves."""
    return f"{time.time_ns() // 1_000_000:012x}{uuid.uuid4().hex[:6]}"


def partial_tags(path: Path) -> list[str]:
    """Return the tags of complete checkpoints that all ranks wrote, the newest first.

    The order comes from the save numbers in the names of rank 0's files, since copied files
    have other dates.
    """
    found = [each.parent for each in path.glob(f"*{_PARTIAL}/{METADATA}")]
    dated = sorted(((_last_save(folder), folder.name) for folder in found), reverse=True)
    return [name.removesuffix(_PARTIAL) for _, name in dated]


def _last_save(folder: Path) -> str:
    return max((each.name for each in folder.glob(f"*_0_0{SUFFIX}")), default="")


def full_tags(path: Path) -> list[str]:
    """Return the tags of checkpoints in one file."""
    if not path.is_dir():
        return []
    return [
        each.name
        for each in sorted(path.iterdir())
        if each.is_file() and each.name != _NEWEST and not each.name.startswith(".")
    ]


def absent(path: Path, tag: str, *, partial: bool) -> CheckpointError:
    """Return the error for a checkpoint that does not exist."""
    there, beside = partial_tags(path), full_tags(path)
    if tag in (beside if partial else there):
        hint = f"Pass partial={not partial}: it was saved so"
    else:
        tags = there if partial else beside
        hint = f"There are {_listed(tags)}" if tags else "Pass the path that was saved to"
    half = partial and partial_folder(path, tag).is_dir()
    why = (
        f"its folder has no {METADATA}: it was not written to the end"
        if half
        else f"{str(path)!r} has none of that tag"
    )
    return CheckpointError(f"there is no {_kind(partial)} checkpoint {tag!r}", why, hint)


def _kind(partial: bool) -> str:
    return "partial" if partial else "full"


def _listed(tags: list[str]) -> str:
    return ", ".join(map(repr, tags[:8])) + ", ..." * (len(tags) > 8)
