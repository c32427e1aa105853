# SPDX-License-Identifier: Apache-2.0
"""Files of a channel on this machine, in the order in which S3 would list them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(root: Path) -> list[tuple[str, Path]]:
    """Return every file with its path below `root`, or `root` itself if it is a file.

    Links are followed, but not back to a directory around them.

    Raises:
        OSError: A directory cannot be read.
    """
    if not root.is_dir():
        return [(root.name, root)]
    found = [(str(path.relative_to(root)), path) for path in _walk(root, frozenset())]
    return sorted(found, key=lambda each: os.fsencode(each[0]))


def _walk(directory: Path, above: frozenset[str]) -> Iterator[Path]:
    real = os.path.realpath(directory)
    if real in above:
        return
    for entry in os.scandir(directory):
        if entry.is_dir():
            yield from _walk(Path(entry.path), above | {real})
        elif entry.is_file():
            yield Path(entry.path)
