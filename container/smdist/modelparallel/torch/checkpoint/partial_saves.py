# SPDX-License-Identifier: Apache-2.0
"""List of the saves in a folder of checkpoints, as their metadata files describe them.

Only partial checkpoints are listed, which all ranks write. A tag may have several saves: while a
new one is written, and where copies of several hosts' folders were put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from smdist.modelparallel.torch.checkpoint.atomic_files import (
    METADATA,
    partial_folders,
    read_file,
)
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import (
    CheckpointError,
    SkippedCheckpoint,
    in_words,
)
from smdist.modelparallel.torch.checkpoint.dcp_metadata import (
    MOST_BYTES,
    file_sizes,
    read_metadata,
)
from smdist.modelparallel.torch.checkpoint.metadata_trailer import FORMAT, split_trailer
from smdist.modelparallel.torch.checkpoint.save_numbers import (
    files_of_saves,
    has_file_name,
    number_of,
    order,
)


@dataclass(frozen=True, slots=True)
class PartialSave:
    """Save of a partial checkpoint.

    Attributes:
        tag: Name of the checkpoint.
        number: Number of the save.
        metadata: Name of the metadata file.
        files: Size of each file with values, in bytes, by name.
    """

    tag: str
    number: str
    metadata: str
    files: Mapping[str, int] = field(repr=False)

    def lost(self, present: Iterable[Iterable[str]]) -> tuple[str, ...]:
        """Return the names of files that no rank has.

        Args:
            present: Names of the whole files that each rank has, by rank.
        """
        seen = {name for names in present for name in names}
        return tuple(sorted(set(self.files) - seen))

    def incomplete(self, lost: tuple[str, ...]) -> SkippedCheckpoint:
        """Return the fault of this save if files are missing or too short.

        Args:
            lost: Names of these files.
        """
        shown = ", ".join(lost[:4])
        why = f"{len(lost)} of {len(self.files)} files are missing or too short, such as {shown}"
        return SkippedCheckpoint(self.tag, "incomplete", lost, why)


@dataclass(frozen=True, slots=True)
class SaveList:
    """Saves in a folder.

    Attributes:
        saves: Saves whose metadata can be read, the newest first.
        faults: Saves whose metadata is missing or corrupt, each with its number; "" if its number
            is unknown.
    """

    saves: list[PartialSave]
    faults: list[tuple[str, SkippedCheckpoint]]


def list_saves(path: Path, tag: str | None = None) -> SaveList:
    """List the saves in a folder of checkpoints, on this host alone.

    Folders that other programs wrote are left out.

    Args:
        path: Folder of checkpoints.
        tag: Tag whose saves are listed; None lists all.
    """
    folders = partial_folders(path)
    if tag is not None:
        folders = {name: folder for name, folder in folders.items() if name == tag}
    found = SaveList([], [])
    for name, folder in folders.items():
        _add(found, name, folder)
    found.saves.sort(key=lambda each: order(each.number), reverse=True)
    return found


def _add(found: SaveList, tag: str, folder: Path) -> None:
    """Add the saves of a folder to a list, and the faults of its metadata files.

    Args:
        found: List to add to.
        tag: Tag of the folder.
        folder: Folder of a partial checkpoint.
    """
    numbers = {number for _, number in files_of_saves(folder)}
    known: dict[str, PartialSave] = {}
    corrupt: set[str] = set()
    for name in [*(f"{number}{METADATA}" for number in sorted(numbers)), METADATA]:
        try:
            save = read_save(tag, folder, name)
        except FileNotFoundError:
            continue
        except CheckpointError as error:
            if numbers or not _is_foreign(folder / name):
                fault = SkippedCheckpoint(tag, "corrupt", (name,), f"{error.what}: {error.why}")
                found.faults.append((number_of(name) or "", fault))
            corrupt.add(number_of(name) or "")
            continue
        if save is not None:
            known.setdefault(save.number, save)
    found.saves.extend(known.values())
    for number in sorted(numbers - known.keys() - corrupt):
        why = f"{number}{METADATA} is missing, so it was not saved or copied completely"
        fault = SkippedCheckpoint(tag, "incomplete", (f"{number}{METADATA}",), why)
        found.faults.append((number, fault))


def read_save(tag: str, folder: Path, name: str) -> PartialSave | None:
    """Return the save that a metadata file describes; None if another program wrote it.

    Args:
        tag: Name of the checkpoint.
        folder: Folder of the checkpoint.
        name: Name of the metadata file.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: The file cannot be read, or has a wrong checksum.
    """
    try:
        _, trailer = split_trailer(read_file(folder / name, MOST_BYTES))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, MemoryError) as error:
        raise CheckpointError(f"{name} cannot be read", in_words(error), "") from error
    if trailer is not None:
        return PartialSave(tag, trailer.save, name, trailer.files)
    files = file_sizes(read_metadata(folder, name))
    found = {number_of(each) for each in files}
    number = found.pop() if len(found) == 1 else None
    return None if number is None else PartialSave(tag, number, name, files)


def _is_foreign(file: Path) -> bool:
    """Return True if another program wrote a metadata file that cannot be read."""
    try:
        data = read_file(file, MOST_BYTES)
    except (OSError, MemoryError):
        return False
    return bool(data) and FORMAT.encode() not in data and not has_file_name(data)


def whole_files(folder: Path, save: PartialSave) -> set[str]:
    """Return the names of a save's files that exist in `folder` and have their full size."""
    return {name for name, size in save.files.items() if _size(folder / name) >= size}


def faults_since(found: SaveList, loaded: PartialSave) -> Iterator[SkippedCheckpoint]:
    """Yield the faults of a list, but for those of saves older than the one that is loaded."""
    for number, fault in found.faults:
        if not number or order(number) >= order(loaded.number):
            yield fault


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else -1
    except OSError:
        return -1
