# SPDX-License-Identifier: Apache-2.0
"""Search for the checkpoint to load, by its tag, and a check that none of its files is missing."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load

from smdist.modelparallel.core.manifest import Manifest
from smdist.modelparallel.core.manifest_document import manifest_of
from smdist.modelparallel.torch.checkpoint.absent_checkpoint import (
    absent,
    absent_newest,
    none_whole,
    unusable,
)
from smdist.modelparallel.torch.checkpoint.atomic_files import (
    check_tag,
    partial_folder,
    read_newest,
)
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import (
    CheckpointError,
    SkippedCheckpoint,
    SkippedCheckpointWarning,
)
from smdist.modelparallel.torch.checkpoint.checkpoint_progress import CheckpointProgress
from smdist.modelparallel.torch.checkpoint.dcp_metadata import num_bytes_of, read_metadata
from smdist.modelparallel.torch.checkpoint.dcp_store import LoadInto, ShardReader
from smdist.modelparallel.torch.checkpoint.full_files import RECORD, USER_CONTENT
from smdist.modelparallel.torch.checkpoint.partial_saves import (
    PartialSave,
    SaveList,
    faults_since,
    list_saves,
    whole_files,
)
from smdist.modelparallel.torch.checkpoint.team import Team

MODEL = "model."
_RECORDED = {"data", "manifest", "num_replicas", "random", "scheduler"}
_HINT = "Copy the files again, or load an older tag"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSource:
    """Checkpoint that can be loaded.

    Attributes:
        tag: Name of the checkpoint.
        path: Folder that contains checkpoints.
        number: Number of the save; "" for a file of an older version.
        manifest: Description of the saved model, optimizer and layout.
        record: Contents other than values: random states, data positions, the scheduler's state.
        user_content: The object that the user saved.
        metadata: Files and positions of values; None for a checkpoint in one file.
        values: Values of a checkpoint in one file, by the keys that they would have in a partial
            checkpoint. Empty for a partial checkpoint, which all ranks wrote.
    """

    tag: str
    path: Path
    number: str = ""
    manifest: Manifest = field(repr=False)
    record: Mapping[str, Any] = field(repr=False)
    user_content: Any = field(repr=False, default=None)
    metadata: Metadata | None = field(repr=False, default=None)
    values: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @property
    def title(self) -> str:
        """Tag and path of the checkpoint, for messages."""
        return f"checkpoint {self.tag!r} in {str(self.path)!r}"


def find_partial(
    path: Path,
    tag: object,
    team: Team,
    *,
    allow_pickle: bool,
    corrupt: Mapping[str, SkippedCheckpoint] = MappingProxyType({}),
) -> CheckpointSource:
    """Find a checkpoint that all ranks wrote, and read its description; all ranks call this.

    Args:
        path: Folder of checkpoints.
        tag: Name of the checkpoint. None finds the newest whole checkpoint, with a warning that
            names newer ones, which are not whole.
        team: All ranks.
        allow_pickle: True reads objects of all classes, which can run code from the files.
        corrupt: Saves to skip, since corrupt values were found in them; by number of the save.

    Raises:
        NoCheckpointError: No save has ever finished in this folder.
        OptionError: No whole checkpoint exists, or it has objects of refused classes.
    """
    what = f"no checkpoint can be loaded from {str(path)!r}"
    found, lost = team.do_first(what, lambda: _listed(path, tag), hint=_HINT)
    skipped = [*lost, *corrupt.values()]
    for save in found.saves:
        if save.number in corrupt:
            continue
        source = _opened(path, save, team, allow_pickle=allow_pickle)
        if isinstance(source, CheckpointSource):
            warn_of((*skipped, *faults_since(found, save)), save.tag, team)
            return source
        skipped.append(source)
    skipped += [each for _, each in found.faults]
    raise team.do_first(what, lambda: _failure(path, tag, found, tuple(skipped)), hint=_HINT)


def _listed(path: Path, tag: object) -> tuple[SaveList, tuple[SkippedCheckpoint, ...]]:
    """Return the saves to try; and a fault if the file "newest" names a tag that is not there."""
    if tag is not None:
        return list_saves(path, check_tag(tag)), ()
    found = list_saves(path)
    tags = {each.tag for each in found.saves} | {each.tag for _, each in found.faults}
    return found, absent_newest(path, read_newest(path), tags, partial=True)


def _failure(
    path: Path, tag: object, found: SaveList, skipped: tuple[SkippedCheckpoint, ...]
) -> CheckpointError:
    """Return the error if no save can be loaded.

    Args:
        path: Folder of checkpoints.
        tag: Tag that was given; None if the newest checkpoint is wanted.
        found: Saves in the folder.
        skipped: Reasons why they cannot be loaded.
    """
    if tag is None:
        has_metadata = found.saves or any(each.kind == "corrupt" for _, each in found.faults)
        finished = bool(has_metadata) or read_newest(path) is not None
        return none_whole(path, skipped, partial=True, finished=finished)
    return unusable(path, str(tag), skipped) if skipped else absent(path, str(tag), partial=True)


def warn_of(skipped: tuple[SkippedCheckpoint, ...], tag: str, team: Team) -> None:
    """Print a warning on rank 0 that names skipped checkpoints; do nothing if there are none.

    Args:
        skipped: Newer checkpoints that cannot be loaded.
        tag: Tag of the checkpoint that is loaded instead.
        team: All ranks.
    """
    if skipped and team.is_first:
        warnings.warn(SkippedCheckpointWarning(tag, skipped), stacklevel=6)


def _opened(
    path: Path, save: PartialSave, team: Team, *, allow_pickle: bool
) -> CheckpointSource | SkippedCheckpoint:
    """Read the description of a save; all ranks call this.

    Returns:
        The checkpoint; if it is not whole, its fault.

    Raises:
        CheckpointError: The checkpoint is whole, and has objects of refused classes.
    """
    folder, tag = partial_folder(path, save.tag), save.tag
    if lost := save.lost(team.gather(whole_files(folder, save))):
        return save.incomplete(lost)
    what = f"checkpoint {tag!r} in {str(path)!r} cannot be read"

    def read() -> tuple[Metadata, dict[str, Any], Manifest]:
        metadata = read_metadata(folder, save.metadata)
        into = {RECORD: None, USER_CONTENT: None}
        found = read_values(folder, metadata, into, allow_pickle=allow_pickle)
        return metadata, found, manifest_in(found[RECORD])

    try:
        metadata, objects, manifest = team.do_first(what, read, hint=_HINT)
    except CheckpointError as error:
        if error.kind != "corrupt":
            raise
        return SkippedCheckpoint(tag, "corrupt", error.files, f"{error.what}: {error.why}")
    return CheckpointSource(
        tag=tag,
        path=path,
        number=save.number,
        manifest=manifest,
        record=objects[RECORD],
        user_content=objects[USER_CONTENT],
        metadata=metadata,
    )


def manifest_in(record: object) -> Manifest:
    """Return the manifest in a checkpoint's record.

    Raises:
        CheckpointError: The record lacks a part, or the manifest is none.
    """
    try:
        if not isinstance(record, Mapping) or not record.keys() >= _RECORDED:
            raise ValueError(f"its record lacks one of {', '.join(sorted(_RECORDED))}")
        return manifest_of(record["manifest"])
    except ValueError as error:
        raise CheckpointError(
            "the description of the checkpoint is corrupt", str(error), _HINT, RECORD, "corrupt"
        ) from error


def read_values(
    folder: Path,
    metadata: Metadata,
    into: dict[str, Any],
    progress: CheckpointProgress | None = None,
    *,
    allow_pickle: bool,
) -> dict[str, Any]:
    """Read values of a checkpoint on this rank alone.

    Args:
        folder: Folder of the checkpoint.
        metadata: Metadata of the checkpoint.
        into: Dict with a key for each value to read. A tensor in this dict is filled with the
            value. Anything else, such as None, is replaced by the value.
        progress: Counter of the bytes that are read; None prints no progress.
        allow_pickle: True reads objects of all classes, which can run code from the files.

    Returns:
        `into`, with the values that were read.

    Raises:
        CheckpointError: Values are corrupt.
        OSError: Files are missing.
    """
    progress = progress or CheckpointProgress("", prints=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            load(
                into,
                storage_reader=ShardReader(folder, metadata, progress),
                planner=LoadInto(allow_pickle=allow_pickle),
                no_dist=True,
            )
        except CheckpointException as failed:
            error: BaseException = next(iter(failed.failures.values()))[0]
            raise error from None
    progress.close(num_bytes_of(metadata))
    return into
