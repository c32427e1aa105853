# SPDX-License-Identifier: Apache-2.0
"""Number of a save, with which the names of its files begin, and which grows from save to save.

The newest checkpoint is the one with the largest number. Dates of files would not do: they change
when files are copied. A number is the time in milliseconds, with random digits at its end; where
the clock went back, it is larger than the largest number in the folder all the same.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from smdist.modelparallel.torch.checkpoint.atomic_files import (
    METADATA,
    SUFFIX,
    partial_folders,
)

_NUMBER: Final = re.compile("[0-9a-f]{12,64}")
_FILE: Final = re.compile(rf"({_NUMBER.pattern})(_\d+_0{re.escape(SUFFIX)}|{re.escape(METADATA)})")
_NAME_IN_BYTES: Final = re.compile(rb"[0-9a-f]{12,64}_\d+_0\.distcp")
_RANDOM_DIGITS: Final = 6


def number_of(name: str) -> str | None:
    """Return the number of the save that wrote a file; None for the name of another file.

    Args:
        name: File name in the folder of a partial checkpoint. The name ".metadata" has no number.
    """
    found = _FILE.fullmatch(name)
    return None if found is None else found[1]


def is_number(text: str) -> bool:
    """Return True if a text has the form of a save's number."""
    return _NUMBER.fullmatch(text) is not None


def has_file_name(data: bytes) -> bool:
    """Return True if the name of a file with values occurs in `data`."""
    return _NAME_IN_BYTES.search(data) is not None


def order(number: str) -> int:
    """Return a key by which numbers of saves are sorted, the oldest first; -1 for ""."""
    return int(number, 16) if number else -1


def next_number(taken: Iterable[str]) -> str:
    """Return the number of a new save, larger than all in `taken`."""
    last = max((order(each) for each in taken), default=0)
    now = time.time_ns() // 1_000_000
    milliseconds = max(now, (last >> 4 * _RANDOM_DIGITS) + 1)
    return f"{milliseconds:012x}{uuid.uuid4().hex[:_RANDOM_DIGITS]}"


def files_of_saves(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file in the folder of a partial checkpoint that a save wrote, with its number.

    Other files in the folder, and ".metadata", are left out.
    """
    for each in sorted(folder.glob("*")):
        number = number_of(each.name)
        if number is not None:
            yield each, number


def last_number(path: Path) -> str:
    """Return the largest number of a save in a folder of checkpoints; "" if there is none."""
    folders = partial_folders(path).values()
    found = (number for folder in folders for _, number in files_of_saves(folder))
    return max(found, key=order, default="")
