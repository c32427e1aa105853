# SPDX-License-Identifier: Apache-2.0
"""Files for the analysis of a job that hangs or has failed: each rank's last operations and stacks.

    smdist-debug/operations-rank-3.json   the last 1,000 operations of rank 3
    smdist-debug/stacks-rank-3.txt        the Python stacks of all its threads

A rank writes them after the signal SIGUSR2, when the file smdist-debug.request changes, and under
smdist's launcher also when its engine fails. The folder is in the job's output data, or in the
working directory of a rank that has no launcher. A compiled thread writes the files, also while the
process is stuck in compiled code. SIGUSR2 does this only if the process has no handler of its own
for it when the engine connects, and until it installs one.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

from smdist.config import RankConfig
from smdist.dataparallel.rendezvous.engine_interface import E, EngineModule, HistoryWriter
from smdist.dataparallel.rendezvous.engine_shutdown import call_after_shutdown
from smdist.debug_files import DEBUG_FOLDER

_writers: list[HistoryWriter] = []  # at most one, which lives as long as the process


def start_history(engine: E, module: EngineModule[E], config: RankConfig) -> None:
    """Let a thread of this process write the engine's history when it is requested.

    A process with engines of both frameworks writes the history of those of the first one.

    Args:
        engine: This rank's engine; a later call replaces it by another one.
        module: smdist's compiled module for torch or for TensorFlow.
        config: This rank's configuration.
    """
    if not _writers:
        stacks = os.memfd_create("smdist-stacks")
        folder = config.output_data or Path.cwd()
        writer = module.HistoryWriter(
            str(folder / DEBUG_FOLDER), stacks, config.output_data is not None
        )
        if writer.install(signal.SIGUSR2):
            faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True, chain=True)
            writer.trust_handler()
        _writers.append(writer)
        call_after_shutdown(_stop)
        os.register_at_fork(after_in_child=_leave)
    if type(_writers[0]) is module.HistoryWriter:
        _writers[0].watch(engine)


def _stop() -> None:
    """Finish the files that are being written, when this process ends."""
    for writer in _writers:
        writer.stop()


def _leave() -> None:
    """Restore the default of SIGUSR2 in a forked child, such as a DataLoader worker."""
    for writer in _writers:
        writer.close_in_child()
    _writers.clear()
