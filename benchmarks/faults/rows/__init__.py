# SPDX-License-Identifier: Apache-2.0
"""All rows of the table of faults, in its order."""

from __future__ import annotations

from benchmarks.faults.fault_row import Row
from benchmarks.faults.rows import checkpoints, networks, processes, restarts, scripts, starts

ROWS: tuple[Row, ...] = (
    *processes.ROWS,
    *scripts.ROWS,
    *networks.ROWS,
    *starts.ROWS,
    *restarts.ROWS,
    *checkpoints.ROWS,
)
