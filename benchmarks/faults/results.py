# SPDX-License-Identifier: Apache-2.0
"""Results of rows in a file, so that a run can go on where it was stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.faults.fault_row import Row, Seen

FOLDER = Path(__file__).parents[2] / "build/faults"
_FILE = FOLDER / "results.json"


class Results:
    """Results of the fault rows that have run, by row and framework. Thread safety: none."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found

    def __len__(self) -> int:
        return len(self._found)

    @classmethod
    def read(cls) -> Results:
        """Return the results of earlier runs."""
        return cls(json.loads(_FILE.read_text()) if _FILE.exists() else {})

    def get(self, row: Row, framework: str) -> Seen | None:
        """Return what was seen of a row, or None if it has not run yet."""
        found = self._found.get(_key(row, framework))
        if found is None:
            return None
        return Seen(**{**found, "errors": [tuple(each) for each in found["errors"]]})

    def add(self, row: Row, framework: str, seen: Seen) -> None:
        """Keep a result, in the file as well."""
        seen.load = os.getloadavg()[0]
        self._found[_key(row, framework)] = asdict(seen)
        FOLDER.mkdir(parents=True, exist_ok=True)
        new = _FILE.with_suffix(".new")
        new.write_text(json.dumps(self._found, indent=1))
        new.rename(_FILE)

    def loads(self) -> tuple[float, float]:
        """Return the least and the highest load average of the machine."""
        found = [each["load"] for each in self._found.values()] or [0.0]
        return min(found), max(found)

    def wrong(self, rows: Iterable[Row]) -> list[tuple[str, list[str]]]:
        """Return the names of those rows that are not as they should be, and why."""
        keys = [_key(row, framework) for row in rows for framework in row.frameworks]
        found = {key: self._found[key]["complaints"] for key in keys if key in self._found}
        return [(key, complaints) for key, complaints in found.items() if complaints]


def _key(row: Row, framework: str) -> str:
    return f"{row.name}, {framework}"
