# SPDX-License-Identifier: Apache-2.0
"""Ranks that have imported TensorFlow, and live as long as the test session.

As `ranks`, but a call gets no process group: it finds what a launcher would have set in the
environment, and calls init() or joined().
"""

import contextlib
import faulthandler
import gc
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ranks

_PATIENCE_SECONDS = 30.0


class TensorFlowWorld(ranks.World):
    """Call functions as function(rank, size, *args) on every rank; see ranks.World."""

    def _start(self, rank: int) -> Any:
        ours, theirs = ranks.CONTEXT.Pipe()
        process = ranks.CONTEXT.Process(target=_serve, args=(theirs, rank), daemon=True)
        process.start()
        theirs.close()
        return process, ours


class Meeting:
    """Where the ranks of one call leave things for each other: files beside each other."""

    def __init__(self, place: str, rank: int, size: int) -> None:
        self.place, self.rank, self.size = place, rank, size

    def tell(self, name: str, value: Any) -> None:
        """Leave something, whole or not at all."""
        path = Path(f"{self.place}-{name}")
        unfinished = path.with_name(f"{path.name}.{self.rank}.part")
        unfinished.write_bytes(pickle.dumps(value))
        unfinished.rename(path)

    def hear(self, name: str) -> Any:
        """What some rank has left, once it has.

        Raises:
            TimeoutError: Nobody has, for 30 seconds.
        """
        path = Path(f"{self.place}-{name}")
        self.until(path.exists, name)
        return pickle.loads(path.read_bytes())

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a fact.

        Raises:
            TimeoutError: It does not hold after 30 seconds.
        """
        end = time.monotonic() + _PATIENCE_SECONDS
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"rank {self.rank} waited for {what}")
            time.sleep(0.002)


_of_call: list[Meeting] = []


def meeting() -> Meeting:
    """That of the call which runs now."""
    return _of_call[-1]


@contextlib.contextmanager
def joined(timeout_seconds: int = 30) -> Iterator[tuple[Any, Any]]:
    """The ops and the compiled module, between init() and shutdown()."""
    import smdist.dataparallel.tensorflow as sdp
    from smdist.dataparallel.tensorflow import library

    os.environ["SMDIST_TIMEOUT_SECONDS"] = str(timeout_seconds)
    sdp.init()
    try:
        yield library.operations(), library.compiled()
    finally:
        sdp.shutdown()


def held_by_others(compiled: Any) -> int:
    """Buffers that earlier calls of this process keep, as variables that took over results."""
    gc.collect()
    return int(compiled.live_buffers())


def _serve(pipe: Connection, rank: int) -> None:
    faulthandler.enable(all_threads=True)
    # A suite that runs in the background may have been started with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow  # noqa: F401  takes seconds: before the first call

    while True:
        try:
            path, name, size, place, environ, args = pipe.recv()
        except EOFError:
            return
        _of_call.append(Meeting(place, rank, size))
        try:
            os.environ.update(dict.fromkeys(ranks._VARIABLES, "") | environ)
            os.environ.update(_environment(rank, size))
            function = getattr(ranks._load(path), name)
            pipe.send((True, function(rank, size, *args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        finally:
            _leave()


def _environment(rank: int, size: int) -> dict[str, str]:
    """What a launcher tells ranks of one host."""
    here = meeting()
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as server:
            here.tell("port", server.getsockname()[1])
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(here.hear("port")),
        "SMDIST_TIMEOUT_SECONDS": "30",
    }


def _leave() -> None:
    face = sys.modules.get("smdist.dataparallel.tensorflow")
    if face is not None and face.is_initialized():
        face.shutdown()
