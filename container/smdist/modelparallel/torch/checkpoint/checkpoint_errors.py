# SPDX-License-Identifier: Apache-2.0
"""Errors about checkpoints, and one-line texts for the errors that cause them."""

from __future__ import annotations

from sagemaker_dist.errors import OptionError


class CheckpointError(OptionError):
    """Error for a checkpoint that cannot be written or read, or belongs to another model."""


def root_of(error: BaseException) -> BaseException:
    """Return the OSError or OptionError that caused an error; the error itself if none did."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError | OptionError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return error


def in_words(error: BaseException) -> str:
    """Return an error's cause as one line, such as "No space left on device: '/fsx/run/newest'"."""
    root = root_of(error)
    if isinstance(root, OSError) and root.strerror:
        return f"{root.strerror}: {root.filename!r}" if root.filename else root.strerror
    if isinstance(root, KeyboardInterrupt):
        return "it was interrupted"
    text = str(root).splitlines()[0] if str(root) else ""
    return text if isinstance(root, OptionError) else f"{type(root).__name__}: {text}"
