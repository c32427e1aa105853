# SPDX-License-Identifier: Apache-2.0
"""Files with a whole checkpoint, which rank 0 writes: which of them there are, and their checksums.

Such a file is a zip archive of `torch.save`. Its directory is at its end, so a file that is cut
short cannot be opened; and it has a checksum of each of its members.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.checkpoint.atomic_files import check_tag
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import (
    CheckpointError,
    SkippedCheckpoint,
    in_words,
)
from smdist.modelparallel.torch.checkpoint.metadata_trailer import FORMAT
from smdist.modelparallel.torch.checkpoint.pickle_cost import check_archive_cost
from smdist.modelparallel.torch.checkpoint.save_numbers import is_number, order

RECORD: Final = "record"
USER_CONTENT: Final = "user_content"
_ZIP: Final = b"PK\x03\x04"
_HEAD_BYTES: Final = 4096  # contain the first key of the document
_KEYS: Final = {"model", "rest", RECORD, USER_CONTENT}


@dataclass(frozen=True, slots=True)
class FullList:
    """Full checkpoints in a folder.

    Attributes:
        tags: Tags of files that can be opened, the newest first.
        faults: Files that cannot be opened.
    """

    tags: list[str]
    faults: list[SkippedCheckpoint]


def full_tags(path: Path) -> list[str]:
    """Return the tags of files in `path` that may be full checkpoints, by their first bytes."""
    if not path.is_dir():
        return []
    return [each.name for each in sorted(path.iterdir()) if _is_candidate(each)]


def list_full(path: Path, newest: str | None) -> FullList:
    """List the full checkpoints in a folder; files of other programs are left out.

    Args:
        path: Folder of checkpoints.
        newest: Tag in the file "newest". Files of older versions have no number of the save; of
            these, the one with this tag comes first.
    """
    numbers: dict[str, str] = {}
    faults: list[SkippedCheckpoint] = []
    for tag in full_tags(path):
        try:
            document = read_document(path / tag)
        except CheckpointError as error:
            if tag == newest or FORMAT.encode() in _head(path / tag):
                faults.append(SkippedCheckpoint(tag, "corrupt", (tag,), error.why))
            continue
        if is_full(document):
            numbers[tag] = save_of(document)
    tags = sorted(numbers, key=lambda tag: (order(numbers[tag]), tag == newest), reverse=True)
    return FullList(tags, faults)


def is_full(document: object) -> bool:
    """Return True if the contents of a file are those of a full checkpoint."""
    return isinstance(document, Mapping) and document.keys() >= _KEYS


def save_of(document: Mapping[str, Any]) -> str:
    """Return the number of the save that wrote a file; "" if the file has none that is valid."""
    number = document.get("save")
    return number if isinstance(number, str) and is_number(number) else ""


def read_document(file: Path) -> Any:
    """Return the contents of a file of `torch.save`, which runs no code; tensors are read later.

    Raises:
        CheckpointError: The file cannot be read.
    """
    try:
        check_archive_cost(str(file))
        return torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:
        raise _unreadable(file, in_words(error)) from error


def check_archive(file: Path) -> None:
    """Check the checksums of all members of a file of `torch.save`.

    Raises:
        CheckpointError: The file cannot be read, or a checksum is wrong.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            member = archive.testzip()
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
        raise _unreadable(file, in_words(error)) from error
    if member is not None:
        raise _unreadable(file, f"the checksum of {member} in this file is wrong")


def _unreadable(file: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{str(file)!r} cannot be read",
        why,
        "Copy the file again, or load another tag",
        about=file.name,
        kind="corrupt",
    )


def _is_candidate(file: Path) -> bool:
    try:
        return file.is_file() and check_tag(file.name) == file.name and _head(file)[:4] == _ZIP
    except OptionError:
        return False


def _head(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(_HEAD_BYTES)
    except OSError:
        return b""
