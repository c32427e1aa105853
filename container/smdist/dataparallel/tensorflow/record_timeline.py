# SPDX-License-Identifier: Apache-2.0
"""Functions start_timeline() and stop_timeline() of Horovod."""

from __future__ import annotations

from smdist.dataparallel import horovod_timeline
from smdist.dataparallel.tensorflow import basics


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write the operations that begin from now on to a file for chrome://tracing, on rank 0.

    The file has rank 0's operations: from the call until all ranks have called, and until the
    end. Other ranks write no file. The file is complete after stop_timeline(), shutdown(), or the
    end of the process.

    Args:
        file_path: The file on rank 0, which is replaced; its folder must exist.
        mark_cycles: Must be False: smdist has no cycles of negotiation.

    Raises:
        OptionError: An argument is wrong, the file cannot be written, a timeline is recorded
            already, or init() was not called.
    """
    horovod_timeline.start(basics.engine("start_timeline"), basics.rank(), file_path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline and close its file.

    Raises:
        OptionError: No timeline is recorded, or init() was not called.
    """
    basics.engine("stop_timeline")
    horovod_timeline.stop()
