# SPDX-License-Identifier: Apache-2.0
"""Error class for checkpoints, and functions that return the cause of an error."""

from __future__ import annotations

from typing import NamedTuple

from sagemaker_dist.errors import KeyPath, OptionError


class CheckpointError(OptionError):
    """Error for a checkpoint that cannot be written or read, or belongs to another model.

    Attributes:
        ranks: World ranks that failed, if the error is for some ranks only; otherwise ().
    """

    own_fields = ("ranks",)
    ranks: tuple[int, ...] = ()


class RankFailure(NamedTuple):
    """Error of one rank, as data that is sent to other ranks.

    Attributes:
        text: Cause of the error, as one line; see `in_words`.
        about: What the error is about, as `DistError.about`.
        kind: Kind of an OptionError; "file" for an OSError, and "failed" for any other error.
    """

    text: str
    about: KeyPath
    kind: str


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
        return RankFailure(in_words(error), root.about, root.kind)
    return RankFailure(in_words(error), (), "file" if isinstance(root, OSError) else "failed")


def in_words(error: BaseException) -> str:
    """Return an error's cause as one line, such as "No space left on device: '/fsx/run/newest'"."""
    root = root_of(error)
    if isinstance(root, OSError) and root.strerror:
        return f"{root.strerror}: {root.filename!r}" if root.filename else root.strerror
    if isinstance(root, KeyboardInterrupt):
        return "it was interrupted"
    text = str(root).splitlines()[0] if str(root) else ""
    return text if isinstance(root, OptionError) else f"{type(root).__name__}: {text}"
