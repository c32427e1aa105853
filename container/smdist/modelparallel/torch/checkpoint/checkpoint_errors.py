# SPDX-License-Identifier: Apache-2.0
"""Error class for checkpoints, and functions that return the cause of an error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sagemaker_dist.errors import KeyPath, OptionError, OptionErrors


class SkippedCheckpoint(NamedTuple):
    """Checkpoint in a folder that cannot be loaded.

    Attributes:
        tag: Name of the checkpoint.
        kind: "missing" if the file "newest" names a checkpoint that is not there; "incomplete" if
            files are missing or too short; "corrupt" if a checksum is wrong.
        files: Names of the files that are missing, too short or corrupt.
        why: The reason in words.
    """

    tag: str
    kind: str
    files: tuple[str, ...]
    why: str


class CheckpointError(OptionError):
    """Error for a checkpoint that cannot be written or read, or belongs to another model.

    Attributes:
        ranks: World ranks that failed, if the error is for some ranks only; otherwise ().
        files: Names of the files that are missing or corrupt, if there are any.
        skipped: Checkpoints that cannot be loaded, if the error is for a whole folder or tag.
    """

    own_fields = ("ranks", "files", "skipped")
    ranks: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    skipped: tuple[SkippedCheckpoint, ...] = ()


class NoCheckpointError(CheckpointError):
    """Error for a folder in which no save has ever finished, so that training starts at step 0.

    A folder whose checkpoints are all damaged raises a CheckpointError of kind "damaged" instead.
    """

    default_kind = "missing"


class SkippedCheckpointWarning(UserWarning):
    """Warning that an older checkpoint is loaded, since newer ones cannot be loaded.

    Attributes:
        tag: Name of the checkpoint that is loaded.
        skipped: Newer checkpoints, which cannot be loaded.
    """

    def __init__(self, tag: str, skipped: tuple[SkippedCheckpoint, ...]) -> None:
        super().__init__(tag, skipped)
        self.tag, self.skipped = tag, skipped

    def __str__(self) -> str:
        return f"{listed(self.skipped)}. Tag {self.tag!r} is loaded instead"


def listed(skipped: Iterable[SkippedCheckpoint]) -> str:
    """Return a text that names each checkpoint that cannot be loaded, with the reason."""
    return "; ".join(f"checkpoint {each.tag!r} is {each.kind}: {each.why}" for each in skipped)


class RankFailure(NamedTuple):
    """Error of one rank, as data that is sent to other ranks.

    Attributes:
        text: Cause of the error, as one line; see `in_words`.
        about: What the error is about, as `DistError.about`.
        kind: Kind of an OptionError; "file" for an OSError, and "failed" for any other error.
        files: Names of the files that are missing or corrupt.
    """

    text: str
    about: KeyPath
    kind: str
    files: tuple[str, ...] = ()


def root_of(error: BaseException) -> BaseException:
    """Return the OSError or OptionError that caused an error; without one, the error itself."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError | OptionError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return error


def failure_of(error: BaseException) -> RankFailure:
    """Return an error as data to send to other ranks."""
    root = root_of(error)
    if isinstance(root, OptionError):
        files = root.files if isinstance(root, CheckpointError) else ()
        return RankFailure(in_words(error), root.about, root.kind, files)
    return RankFailure(in_words(error), (), "file" if isinstance(root, OSError) else "failed")


def in_words(error: BaseException) -> str:
    """Return an error's cause as one line, such as "No space left on device: '/fsx/run/newest'"."""
    root = root_of(error)
    if isinstance(root, OptionErrors):
        return "; ".join(map(str, root.faults))
    if isinstance(root, OSError) and root.strerror:
        return f"{root.strerror}: {root.filename!r}" if root.filename else root.strerror
    if isinstance(root, KeyboardInterrupt):
        return "it was interrupted"
    text = str(root).splitlines()[0] if str(root) else ""
    return text if isinstance(root, OptionError) else f"{type(root).__name__}: {text}"
