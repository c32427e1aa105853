# SPDX-License-Identifier: Apache-2.0
"""Errors for checkpoints that do not exist, or of which none can be loaded."""

from __future__ import annotations

from pathlib import Path

from smdist.modelparallel.torch.checkpoint.atomic_files import NEWEST, partial_folder
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import (
    CheckpointError,
    NoCheckpointError,
    SkippedCheckpoint,
    listed,
)
from smdist.modelparallel.torch.checkpoint.full_files import full_tags
from smdist.modelparallel.torch.checkpoint.partial_saves import list_saves


def absent(path: Path, tag: str, *, partial: bool) -> CheckpointError:
    """Return the error for a checkpoint that does not exist; its hint lists existing ones.

    Args:
        path: Folder of checkpoints.
        tag: Tag of the missing checkpoint.
        partial: True for a checkpoint that all ranks write, False for one that is a single file.
    """
    there, beside = _partial_tags(path), full_tags(path)
    is_other = tag in (beside if partial else there)
    if is_other:
        hint = f"Pass partial={not partial}, with which it was saved"
    else:
        tags = there if partial else beside
        hint = f"There are {_named(tags)}" if tags else "Pass the path that was saved to"
    is_half = partial and not is_other and partial_folder(path, tag).is_dir()
    why = (
        "its folder has no metadata, so it was not written completely"
        if is_half
        else f"{str(path)!r} has none with this tag"
    )
    return CheckpointError(
        f"there is no {_kind(partial)} checkpoint {tag!r}",
        why,
        hint,
        about="partial" if is_other else "tag",
        kind="incomplete" if is_half else "missing",
    )


def unusable(path: Path, tag: str, skipped: tuple[SkippedCheckpoint, ...]) -> CheckpointError:
    """Return the error for a checkpoint that exists and cannot be loaded.

    Args:
        path: Folder of checkpoints.
        tag: Tag of the checkpoint.
        skipped: Faults of its saves, the newest first.
    """
    first = skipped[0]
    others = [each for each in [*_partial_tags(path), *full_tags(path)] if each != tag]
    return CheckpointError(
        f"checkpoint {tag!r} in {str(path)!r} is {first.kind}",
        "; ".join(each.why for each in skipped),
        f"Load another one: tag={others[0]!r}" if others else "Copy the files again",
        about=first.files,
        kind=first.kind,
        skipped=skipped,
    )


def none_whole(
    path: Path, skipped: tuple[SkippedCheckpoint, ...], *, partial: bool, finished: bool
) -> CheckpointError:
    """Return the error for a folder in which no checkpoint can be loaded.

    Args:
        path: Folder of checkpoints.
        skipped: Faults of the checkpoints in it.
        partial: True for checkpoints that all ranks write, False for those in a single file.
        finished: True if a save has finished in this folder.
    """
    others = full_tags(path) if partial else _partial_tags(path)
    if others and all(each.kind == "missing" for each in skipped):
        return CheckpointError(
            f"there is no {_kind(partial)} checkpoint in {str(path)!r}",
            f"it has {_kind(not partial)} checkpoints: {_named(others)}",
            f"Pass partial={not partial}, with which they were saved",
            about="partial",
            kind="missing",
        )
    if finished:
        return CheckpointError(
            f"all checkpoints in {str(path)!r} are damaged",
            listed(skipped),
            "Copy the files again; to start at step 0, save to another path",
            about="path",
            kind="damaged",
            skipped=skipped,
        )
    more = f"; {listed(skipped)}" if skipped else ""
    return NoCheckpointError(
        f"there is no checkpoint in {str(path)!r}",
        f"no save has finished in this folder{more}",
        "Start at step 0, or pass the path that was saved to",
        about="path",
        skipped=skipped,
    )


def absent_newest(
    path: Path, newest: str | None, tags: set[str], *, partial: bool
) -> tuple[SkippedCheckpoint, ...]:
    """Return the fault of a checkpoint that is named in the file "newest" and is not there.

    Args:
        path: Folder of checkpoints.
        newest: Tag in the file "newest"; None without this file.
        tags: Tags of the checkpoints that are there, whole or not.
        partial: True if these are checkpoints that all ranks write, False if each is a single file.
    """
    if newest is None or newest in tags:
        return ()
    others = full_tags(path) if partial else _partial_tags(path)
    if newest in others:
        why = f"it is a {_kind(not partial)} checkpoint, which partial={not partial} loads"
    else:
        why = f"the file {NEWEST!r} names it, and the folder does not have it"
    return (SkippedCheckpoint(newest, "missing", (NEWEST,), why),)


def _partial_tags(path: Path) -> list[str]:
    return list(dict.fromkeys(each.tag for each in list_saves(path).saves))


def _kind(partial: bool) -> str:
    return "partial" if partial else "full"


def _named(tags: list[str]) -> str:
    return ", ".join(map(repr, tags[:8])) + ", ..." * (len(tags) > 8)
