# SPDX-License-Identifier: Apache-2.0
"""Files for the analysis of a job that hangs or has failed: each rank's last operations and stacks.

    smdist-debug/operations-rank-3.json   the last 1,000 operations of rank 3
    smdist-debug/stacks-rank-3.txt        the Python stacks of all its threads

A rank writes them after the signal SIGUSR2, when the file smdist-debug.request changes, and under
smdist's launcher also when its engine fails. The folder is in the job's output data, or in the
working directory of a rank that has no launcher. A compiled thread writes the files, also while the
process is stuck in compiled code. It gets the stacks from a thread of Python. SIGUSR2 does this
only if the process has no handler of its own for it when the engine connects, and until it installs
one.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import threading
from pathlib import Path

from smdist.config import RankConfig
from smdist.dataparallel.rendezvous.engine_interface import E, EngineModule, HistoryWriter
from smdist.dataparallel.rendezvous.engine_shutdown import call_after_shutdown
from smdist.debug_files import DEBUG_FOLDER

_writers: list[HistoryWriter] = []  # at most one, which lives as long as the process
_sockets: list[int] = []  # descriptors of the two ends over which the writer requests stacks


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
        requests, source = (each.detach() for each in socket.socketpair())
        writer = module.HistoryWriter(
            str(folder / DEBUG_FOLDER), stacks, requests, config.output_data is not None
        )
        if writer.install(signal.SIGUSR2):
            faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
            writer.replace_handler()
            threading.Thread(
                target=_write_stacks, args=(source, stacks), name="smdist-stacks", daemon=True
            ).start()
        _sockets[:] = requests, source
        _writers.append(writer)
        call_after_shutdown(_stop)
        os.register_at_fork(after_in_child=_leave)
    if type(_writers[0]) is module.HistoryWriter:
        _writers[0].watch(engine)


def _write_stacks(source: int, stacks: int) -> None:
    """Write the stacks of all threads to a file whenever a byte comes, and send it back then.

    This thread holds the GIL while it reads the stacks, so no other thread changes its own.
    """
    dump = os.memfd_create("smdist-dump")
    while request := os.read(source, 1):
        os.ftruncate(dump, 0)
        os.lseek(dump, 0, os.SEEK_SET)
        faulthandler.dump_traceback(file=dump, all_threads=True)
        os.write(stacks, _without_current_thread(os.pread(dump, os.fstat(dump).st_size, 0)))
        os.write(source, request)


def _without_current_thread(dump: bytes) -> bytes:
    """Return faulthandler's text without the stack of the thread that has written it."""
    threads = dump.split(b"\n\n")
    return b"\n\n".join(each for each in threads if not each.startswith(b"Current thread"))


def _stop() -> None:
    """Finish the files that are being written, when this process ends."""
    for writer in _writers:
        writer.stop()


def _leave() -> None:
    """Restore the default of SIGUSR2 in a forked child, such as a DataLoader worker."""
    for writer in _writers:
        writer.close_in_child()
    for each in _sockets:
        os.close(each)
    _writers.clear()
    _sockets.clear()
