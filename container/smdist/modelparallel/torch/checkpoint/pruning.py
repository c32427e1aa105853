# SPDX-License-Identifier: Apache-2.0
"""Removal of older checkpoints and of files that crashed saves left behind.

Only files that a save wrote are removed, by their names; other files in the folders stay. Metadata
goes first: without it, a half-removed checkpoint counts as incomplete.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from smdist.modelparallel.torch.checkpoint.atomic_files import (
    METADATA,
    partial_folder,
    partial_folders,
)
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.partial_saves import list_saves, read_save, whole_files
from smdist.modelparallel.torch.checkpoint.save_numbers import files_of_saves, order
from smdist.modelparallel.torch.checkpoint.team import Team


def remove_save(folder: Path, number: str, *, rank: int | None = None) -> None:
    """Remove the files of one save from the folder of a partial checkpoint.

    Args:
        folder: Folder of the checkpoint.
        number: Number of the save.
        rank: Rank whose file is removed; None removes the files of all ranks, and the metadata.
    """
    if rank is None and _has_metadata_of(folder, number):
        (folder / METADATA).unlink(missing_ok=True)
    start = f"{number}" if rank is None else f"{number}_{rank}_"
    _remove(folder, lambda name, of: of == number and name.startswith(start))


def _has_metadata_of(folder: Path, number: str) -> bool:
    """Return True if ".metadata", which the newest save replaces, describes save `number`."""
    try:
        save = read_save("", folder, METADATA)
    except (FileNotFoundError, CheckpointError):
        return False
    return save is not None and save.number == number


def remove_older_saves(folder: Path, number: str, *, crashed: bool) -> None:
    """Remove the files of older saves from the folder of a checkpoint that was saved again.

    Args:
        folder: Folder of the checkpoint.
        number: Number of the new save.
        crashed: True removes saves without metadata, too. They are left over from crashes if no
            other writer can be at work.
    """
    names = {each.name for each, _ in files_of_saves(folder)}
    _remove(
        folder,
        lambda _, of: order(of) < order(number) and (crashed or f"{of}{METADATA}" in names),
    )


def _remove(folder: Path, is_unwanted: Callable[[str, str], bool]) -> None:
    """Remove files of saves from the folder of a partial checkpoint.

    Args:
        folder: Folder of the checkpoint.
        is_unwanted: Function that gets a file name and the number of its save, and returns True to
            remove this file.
    """
    found = [each for each, number in files_of_saves(folder) if is_unwanted(each.name, number)]
    for each in sorted(found, key=lambda each: not each.name.endswith(METADATA)):
        each.unlink(missing_ok=True)


def prune(path: Path, tag: str, num_kept: int, team: Team, *, crashed: bool) -> None:
    """Remove older checkpoints; each host removes its own files, and all ranks call this.

    The checkpoint that was saved last is kept, and so are the newest other ones that are whole.

    Args:
        path: Folder of checkpoints.
        tag: Tag of the checkpoint that was saved last.
        num_kept: Number of checkpoints to keep.
        team: All ranks.
        crashed: True removes folders of crashed saves, too, in which no other writer can be at
            work.
    """
    what = f"old checkpoints in {str(path)!r} cannot be listed"
    hint = "Remove them by hand"
    saves = team.do_first(what, lambda: list_saves(path).saves, hint=hint)
    kept, unwanted = {tag}, set()
    for save in saves:
        if save.tag in kept:
            continue
        folder = partial_folder(path, save.tag)
        is_full = len(kept) == num_kept
        if not is_full and not save.lost(team.gather(whole_files(folder, save))):
            kept.add(save.tag)
        else:
            unwanted.add(save.tag)
    half = team.do_first(what, lambda: _crashed(path), hint=hint) if crashed else set()
    folders = [partial_folder(path, each) for each in sorted((unwanted | half) - kept)]
    for folder in folders:
        (folder / METADATA).unlink(missing_ok=True)
    team.gather(None)
    for folder in folders:
        _remove(folder, lambda _name, _number: True)
        with suppress(OSError):  # other files are in it
            folder.rmdir()


def _crashed(path: Path) -> set[str]:
    """Return the tags of folders that have files of saves, and no metadata."""
    found = set()
    for tag, folder in partial_folders(path).items():
        names = [each.name for each, _ in files_of_saves(folder)]
        has_metadata = any(name.endswith(METADATA) for name in names)
        if names and not has_metadata and not (folder / METADATA).exists():
            found.add(tag)
    return found
