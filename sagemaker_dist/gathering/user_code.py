# SPDX-License-Identifier: Apache-2.0
"""Facts about the user's files: the script, and directories to be written to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sagemaker_dist.planning import Obstacle, Source, directory_of
from sagemaker_dist.planning.locations import FILE, S3


def find_source(entry_point: Any, source_dir: Any, *, is_launched: bool = False) -> Source:
    """Return where the entry point should be, and whether it is there."""
    if source_dir is not None and str(source_dir).lower().startswith(S3):
        return Source(entry_point=str(entry_point), directory=str(source_dir), in_s3=True)
    directory = None if source_dir is None else str(source_dir)
    folder = Path(directory_of(directory)) if directory else Path()
    return Source(
        entry_point=str(entry_point),
        directory=directory,
        exists=_holds((folder / str(entry_point)).is_file),
        directory_exists=_holds(folder.is_dir),
        is_launched=is_launched,
    )


def is_there(path: Path) -> bool:
    """Return whether the path exists."""
    return _holds(path.exists)


def _holds(check: Callable[[], bool]) -> bool:
    """Return the check's result, or False for a path that is too long."""
    try:
        return check()
    except OSError:
        return False


def find_obstacle(uri: Any) -> Obstacle | None:
    """Return what keeps a file:// directory from being written to, or None."""
    if not isinstance(uri, str) or not uri.startswith(FILE + "/"):
        return None
    path = Path(directory_of(uri))
    nearest = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return None
    return Obstacle(path=str(nearest), is_directory=nearest.is_dir())
