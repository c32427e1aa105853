# SPDX-License-Identifier: Apache-2.0
"""Checks on disk: whether the script exists, and whether directories can be written to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sagemaker_dist.planning import Obstacle, Source, directory_of
from sagemaker_dist.planning.locations import FILE, S3


def find_source(entry_point: Any, source_dir: Any, *, is_launched: bool = False) -> Source:
    """Return the place of the entry point, and whether it exists.

    Args:
        entry_point: Path of the script. If `source_dir` is given, the path is relative to it.
        source_dir: Directory of the script, or URI of a tarball in S3, which is not inspected.
        is_launched: True if the sagemaker-dist launcher starts the script.
    """
    if source_dir is not None and str(source_dir).lower().startswith(S3):
        return Source(entry_point=str(entry_point), directory=str(source_dir), in_s3=True)
    directory = None if source_dir is None else str(source_dir)
    folder = Path(directory_of(directory)) if directory else Path()
    return Source(
        entry_point=str(entry_point),
        directory=directory,
        exists=_is_true((folder / str(entry_point)).is_file),
        directory_exists=_is_true(folder.is_dir),
        is_launched=is_launched,
    )


def path_exists(path: Path) -> bool:
    """Return whether a file or directory exists at `path`; False also if the path is too long."""
    return _is_true(path.exists)


def _is_true(check: Callable[[], bool]) -> bool:
    """Return the result of `check`, a check of a path; False if it raises OSError.

    A path that is too long raises such an error.
    """
    try:
        return check()
    except OSError:
        return False


def find_obstacle(uri: Any) -> Obstacle | None:
    """Return the existing file or directory that prevents writing to a file:// URI.

    Returns None if the directory of the URI exists or can be created, and for other URIs.
    """
    if not isinstance(uri, str) or not uri.startswith(FILE + "/"):
        return None
    path = Path(directory_of(uri))
    nearest = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return None
    return Obstacle(path=str(nearest), is_directory=nearest.is_dir())
