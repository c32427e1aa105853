# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files of one training with numbers in their names: NAME-1.keras, NAME-2.keras, ..."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NumberedFiles:
    """Files of one name in a folder.

    Attributes:
        folder: Folder of the files.
        name: Begin of their names.
    """

    folder: Path
    name: str

    def numbers(self) -> list[int]:
        """Return the numbers of the files that exist, in ascending order."""
        pattern = re.compile(re.escape(self.name) + r"-(0|[1-9][0-9]*)\.keras")
        names = [each.name for each in self.folder.iterdir()] if self.folder.is_dir() else []
        return sorted(int(found[1]) for found in map(pattern.fullmatch, names) if found)

    def path(self, number: int) -> Path:
        """Return the path of a file."""
        return self.folder / f"{self.name}-{number}.keras"

    def keep_last(self, count: int) -> None:
        """Delete all files but the last ones.

        Args:
            count: Number of files to keep, at least 1.
        """
        for number in self.numbers()[:-count]:
            self.path(number).unlink(missing_ok=True)
