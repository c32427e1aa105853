# SPDX-License-Identifier: Apache-2.0
"""List of the fuzz targets in Python, and what they share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from byte_source import ByteSource

Target = Callable[[ByteSource], None]
TARGETS: dict[str, Target] = {}
FOLDER = Path(tempfile.mkdtemp(prefix="smdist-fuzz-"))
_folders: set[Path] = set()


def target(function: Target) -> Target:
    TARGETS[function.__name__] = function
    return function


def run(name: str, data: bytes) -> None:
    TARGETS[name](ByteSource(data))


def written(name: str, text: str) -> Path:
    """Write a file of the input; the readers open it by its path."""
    path = FOLDER / name
    if path.parent not in _folders:
        path.parent.mkdir(parents=True, exist_ok=True)
        _folders.add(path.parent)
    path.write_bytes(text.encode("utf-8", "surrogateescape" if is_raw(text) else "replace"))
    return path


def is_raw(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def remove_files() -> None:
    """Remove the files of the inputs; call it when no target runs any more."""
    shutil.rmtree(FOLDER)
