# SPDX-License-Identifier: Apache-2.0
"""Search for the checkpoint to load, by its tag, and a check that none of its files is missing."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load

from smdist.modelparallel.core.manifest import Manifest
from smdist.modelparallel.torch.checkpoint.atomic_files import (
    absent,
    check_tag,
    partial_folder,
    partial_tags,
    read_newest,
)
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.checkpoint_progress import CheckpointProgress
from smdist.modelparallel.torch.checkpoint.dcp_metadata import (
    file_sizes,
    num_bytes_of,
    read_metadata,
    whole_files,
)
from smdist.modelparallel.torch.checkpoint.dcp_store import LoadInto, ShardReader
from smdist.modelparallel.torch.checkpoint.team import Team

RECORD = "record"
USER_CONTENT = "user_content"
MODEL = "model."
_HINT = "Copy the files again, or load an older tag"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSource:
    """Checkpoint that can be loaded.

    Attributes:
        tag: Name of the checkpoint.
        path: Folder that contains checkpoints.
        record: Contents other than values: the manifest (a description of all values), random
            states, data positions, and the scheduler's state.
        user_content: The object that the user saved.
        metadata: Files and positions of values; None for a checkpoint in one file.
        values: Values of a checkpoint in one file, by the keys that they would have in a partial
            checkpoint. Empty for a partial checkpoint, which all ranks wrote.
    """

    tag: str
    path: Path
    record: Mapping[str, Any] = field(repr=False)
    user_content: Any = field(repr=False, default=None)
    metadata: Metadata | None = field(repr=False, default=None)
    values: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        """Description of the saved model, optimizer and layout."""
        return Manifest.from_document(self.record["manifest"])

    @property
    def title(self) -> str:
        """Tag and path of the checkpoint, for messages."""
        return f"checkpoint {self.tag!r} in {str(self.path)!r}"


def find_partial(path: Path, tag: object, team: Team) -> CheckpointSource:
    """Find a checkpoint that all ranks wrote, and read its description; all ranks call this.

    Args:
        path: Folder of checkpoints.
        tag: Name of the checkpoint. None finds the newest checkpoint; if some of its files are
            missing, an older checkpoint is taken, with a warning.
        team: All ranks.

    Raises:
        OptionError: The checkpoint does not exist, is incomplete, or cannot be read.
    """
    what = f"no checkpoint can be loaded from {str(path)!r}"
    tags = team.do_first(what, lambda: _candidates(path, tag), hint=_HINT)
    skipped: list[CheckpointError] = []
    for each in tags:
        folder = partial_folder(path, each)
        metadata = team.do_first(what, lambda: _described(path, each), hint=_HINT)  # noqa: B023
        fault = _unfinished(path, each, metadata, team)
        if fault is None:
            _warn(skipped, each, team)
            return _opened(path, folder, each, metadata, team)
        skipped.append(fault)
    raise skipped[0]


def _candidates(path: Path, tag: object) -> list[str]:
    if tag is not None:
        return [check_tag(tag)]
    newest = read_newest(path)
    older = [each for each in partial_tags(path) if each != newest]
    return [newest, *older]


def _described(path: Path, tag: str) -> Metadata:
    try:
        return read_metadata(partial_folder(path, tag))
    except FileNotFoundError:
        raise absent(path, tag, partial=True) from None


def _unfinished(path: Path, tag: str, metadata: Metadata, team: Team) -> CheckpointError | None:
    """Return the error for missing or short files; None if each file is complete on some host.

    Args:
        path: Folder of checkpoints.
        tag: Name of the checkpoint.
        metadata: Metadata of the checkpoint, which lists the files.
        team: All ranks, which have to call this.
    """
    folder = partial_folder(path, tag)
    seen = {name for names in team.gather(whole_files(folder, metadata)) for name in names}
    lost = sorted(set(file_sizes(metadata)) - seen)
    if not lost:
        return None
    others = [each for each in partial_tags(path) if each != tag]
    hint = f"Load an older one: tag={others[0]!r}" if others else "Copy the files again"
    return CheckpointError(
        f"checkpoint {tag!r} in {str(path)!r} is incomplete",
        f"{len(lost)} of {len(file_sizes(metadata))} files are missing or too short, such as"
        f" {', '.join(lost[:4])}",
        team.share(hint),
        about=tuple(lost),
        kind="incomplete",
    )


def _warn(skipped: list[CheckpointError], tag: str, team: Team) -> None:
    if skipped and team.is_first:
        text = "; ".join(f"{each.what}: {each.why}" for each in skipped)
        warnings.warn(f"{text}. Tag {tag!r} is loaded instead", stacklevel=4)


def _opened(path: Path, folder: Path, tag: str, metadata: Metadata, team: Team) -> CheckpointSource:
    title = f"checkpoint {tag!r} in {str(path)!r}"
    found = team.do_first(
        f"{title} cannot be read",
        lambda: read_values(folder, metadata, {RECORD: None, USER_CONTENT: None}),
        hint=_HINT,
    )
    return CheckpointSource(
        tag=tag,
        path=path,
        record=found[RECORD],
        user_content=found[USER_CONTENT],
        metadata=metadata,
    )


def read_values(
    folder: Path,
    metadata: Metadata,
    into: dict[str, Any],
    progress: CheckpointProgress | None = None,
) -> dict[str, Any]:
    """Read values of a checkpoint on this rank alone.

    Args:
        folder: Folder of the checkpoint.
        metadata: Metadata of the checkpoint.
        into: Dict with a key for each value to read. A tensor in this dict is filled with the
            value. Anything else, such as None, is replaced by the value.
        progress: Counter of the bytes that are read; None prints no progress.

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
                planner=LoadInto(),
                no_dist=True,
            )
        except CheckpointException as failed:
            error: BaseException = next(iter(failed.failures.values()))[0]
            raise error from None
    progress.close(num_bytes_of(metadata))
    return into
