# SPDX-License-Identifier: Apache-2.0
"""File in which torchrun's process leaves for the launcher what it waits for and why it failed.

The launcher hides the output of torchrun's process while it runs, and looks at this file instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import DistError

_NAME: Final = "starter.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterReport:
    """State of torchrun's process on one host.

    Attributes:
        missing: Names of the hosts that it waits for.
        error: Text of the error that ended it; "" without one.
        fields: Fields of that error, by name.
    """

    missing: tuple[str, ...] = ()
    error: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


def write_report(directory: Path, report: StarterReport) -> None:
    """Replace the report in `directory`; faults of the disk are ignored."""
    with suppress(OSError):  # a full disk must not end the start
        unfinished = directory / f".{_NAME}"
        unfinished.write_text(json.dumps(asdict(report)), encoding="utf-8")
        unfinished.replace(directory / _NAME)


def write_error(directory: Path, error: DistError) -> None:
    """Replace the report in `directory` by one with an error."""
    write_report(directory, StarterReport(error=str(error), fields=error.as_dict()))


def read_report(directory: Path) -> StarterReport:
    """Return the report in `directory`; an empty one if there is none that can be read."""
    try:
        found = json.loads((directory / _NAME).read_text(encoding="utf-8"))
        missing = tuple(map(str, found["missing"]))
        return StarterReport(
            missing=missing, error=str(found["error"]), fields=dict(found["fields"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return StarterReport()
