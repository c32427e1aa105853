# SPDX-License-Identifier: Apache-2.0
"""List of the fuzz targets in Python, and what they share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from byte_source import ByteSource

Target = Callable[[ByteSource], None]
TARGETS: dict[str, Target] = {}
FOLDER = Path(tempfile.mkdtemp(prefix="smdist-fuzz-"))


def target(function: Target) -> Target:
    TARGETS[function.__name__] = function
    return function


def run(name: str, data: bytes) -> None:
    TARGETS[name](ByteSource(data))


def words_of(*documents: Any) -> list[str]:
    """Return the keys and texts in JSON documents, which a reader may look for."""
    found: set[str] = set()
    for document in documents:
        inner = document.values() if isinstance(document, dict) else document
        found |= {document} if isinstance(document, str) else set()
        if isinstance(document, dict | list):
            found |= {*words_of(*inner), *(document if isinstance(document, dict) else ())}
    return sorted(found)[:256]


def written(name: str, text: str) -> Path:
    """Write a file of the input; the readers open it by its path."""
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
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
