# SPDX-License-Identifier: Apache-2.0
"""Results of commands, as lines of JSON that are written while a command runs.

So what ran before a hang counts. A line has name, outcome (pass, skip or fail), seconds, and what
was said: the reason of a skip, or the failure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Outcome = Literal["pass", "skip", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Outcome of one test, or of one command."""

    name: str
    outcome: Outcome
    seconds: float
    said: str = ""


def read(file: Path) -> list[Result]:
    """Return the results in a file; lines that are none are passed over, the last may be cut."""
    return list(_results(file.read_text(errors="replace").splitlines())) if file.exists() else []


def write(file: Path, results: Iterable[Result]) -> None:
    """Write results as lines of JSON."""
    file.write_text("".join(f"{json.dumps(asdict(each))}\n" for each in results))


def _results(lines: Iterable[str]) -> Iterator[Result]:
    for line in lines:
        if not line.startswith('{"name": '):
            continue
        try:
            yield Result(**json.loads(line))
        except (ValueError, TypeError):
            continue
