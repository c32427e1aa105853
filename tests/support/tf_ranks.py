# SPDX-License-Identifier: Apache-2.0
"""Ranks that have imported TensorFlow and live as long as the test session.

They work like those of `ranks`, but a call gets no process group. It finds the environment that
a launcher would set, and calls init() or joined().
"""

import contextlib
import faulthandler
import gc
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ranks
from fork_server import Child, ForkServer, shared_server
from ports import free_port

# Imported before ranks are forked.
_MODULES = ("tensorflow", "keras", "smdist.dataparallel.tensorflow")
_PATIENCE_SECONDS = 30.0


class TensorFlowWorld(ranks.World):
    """Call functions as function(rank, size, *args) on every rank; see ranks.World.

    All worlds of a process are forked from one server: TensorFlow takes 6 CPU seconds to import.
    """

    def _start_server(self) -> ForkServer:
        return shared_server(_MODULES, TF_CPP_MIN_LOG_LEVEL="2")

    def _close_server(self) -> None:
        """Leave the server to later worlds."""

    def _start(self, rank: int) -> Child:
        return self._server.start(_serve, rank)


class Meeting:
    """Exchange of values between the ranks of one call, through files."""

    def __init__(self, place: str, rank: int, size: int) -> None:
        self.place, self.rank, self.size = place, rank, size

    def tell(self, name: str, value: Any) -> None:
        """Publish a value atomically."""
        path = Path(f"{self.place}-{name}")
        unfinished = path.with_name(f"{path.name}.{self.rank}.part")
        unfinished.write_bytes(pickle.dumps(value))
        unfinished.rename(path)

    def hear(self, name: str) -> Any:
        """Wait for a value that another rank publishes, and return it.

        Raises:
            TimeoutError: No rank has published the value within 30 seconds.
        """
        path = Path(f"{self.place}-{name}")
        self.until(path.exists, name)
        return pickle.loads(path.read_bytes())

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds.

        Raises:
            TimeoutError: The condition does not hold after 30 seconds.
        """
        end = time.monotonic() + _PATIENCE_SECONDS
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"rank {self.rank} waited for {what}")
            time.sleep(0.002)


_of_call: list[Meeting] = []


def meeting() -> Meeting:
    """Return the exchange of the current call."""
    return _of_call[-1]


@contextlib.contextmanager
def joined(timeout_seconds: int = 30) -> Iterator[tuple[Any, Any]]:
    """Provide the ops and the compiled module, between init() and shutdown()."""
    import smdist.dataparallel.tensorflow as sdp
    from smdist.dataparallel.tensorflow import op_library

    os.environ["SMDIST_TIMEOUT_SECONDS"] = str(timeout_seconds)
    sdp.init()
    try:
        yield op_library.operations(), op_library.compiled()
    finally:
        sdp.shutdown()


def held_by_others(compiled: Any) -> int:
    """Return the number of buffers that earlier calls keep, such as variables that took results."""
    gc.collect()
    return int(compiled.live_buffers())


def _serve(pipe: Connection, rank: int) -> None:
    faulthandler.enable(all_threads=True)
    # A test suite in the background may have been started with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
            _forget_settings()
            pipe.send((True, function(rank, size, *args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        finally:
            _leave()


def _forget_settings() -> None:
    """Give Keras its defaults again, which an earlier call on this rank alone may have changed."""
    import keras

    keras.config.set_floatx("float32")
    keras.backend.clear_session(free_memory=False)


def _environment(rank: int, size: int) -> dict[str, str]:
    """Return the environment that a launcher sets for ranks of one host."""
    here = meeting()
    if rank == 0:
        here.tell("port", free_port())
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
