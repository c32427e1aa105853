# SPDX-License-Identifier: Apache-2.0
"""Names of the files that ranks and their guards write for the analysis of a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

DEBUG_FOLDER: Final = "smdist-debug"  # in the job's output data
_LAUNCHED: Final = "SMDIST_START_TIMEOUT_SECONDS"  # the launcher sets it for ranks


def output_data(base: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the directory of the job's output data; None if there is no launcher of smdist.

    Args:
        base: SageMaker's directory.
        environ: Environment of a rank or of its guard.
    """
    has_launcher = environ.get("SMDIST_GUARD_SOCKET") and environ.get(_LAUNCHED)
    return base / "output" / "data" if has_launcher else None


def state_file(base: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the file for the kernel state of a rank that does not run.

    None for a process that is no rank, or that smdist's launcher has not started.

    Args:
        base: SageMaker's directory.
        environ: Environment of the rank's guard.
    """
    rank = environ.get("RANK", "")
    folder = output_data(base, environ)
    return folder / DEBUG_FOLDER / f"state-rank-{rank}.json" if folder and rank else None
