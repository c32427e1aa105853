# SPDX-License-Identifier: Apache-2.0
"""Ranks that live as long as the test session: importing torch costs seconds, once.

A test sends a function to every rank and gets what each returned. A rank that
does not answer in time prints its stacks and the test fails.
"""

import faulthandler
import importlib.util
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("spawn")


# Calls take turns: results and errors are the same under each, and no start has to measure.
TUNINGS = (
    {"ONE_SHOT_BYTES": "262144", "SINGLE_OWNER_BYTES": "262144", "CHUNK_BYTES": "262144"},
    {"ONE_SHOT_BYTES": "4096", "SINGLE_OWNER_BYTES": "65536", "CHUNK_BYTES": "65536"},
    {"ONE_SHOT_BYTES": "0", "SINGLE_OWNER_BYTES": "0", "CHUNK_BYTES": "1048576"},
    {"ONE_SHOT_BYTES": "0", "SINGLE_OWNER_BYTES": "1048576", "CHUNK_BYTES": "131072"},
)
_LINES = {"LANES": "2", "ARRIVING_BYTES": "229376"}
_VARIABLES = (
    "SMDIST_HOST_ID",
    "SMDIST_SHARD_WEIGHTS",
    *(f"SMDIST_{name}" for name in (*_LINES, *TUNINGS[0])),
)


class RankFailedError(AssertionError):
    """A rank raised, died, or did not answer."""


class World:
    """Worker processes, one per rank, with a torch process group made anew for each call.

    A call for more ranks than there are starts them.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._calls = 0
        self._folder = tempfile.TemporaryDirectory()
        self._ranks = [self._start(rank) for rank in range(size)]

    def _start(self, rank: int) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_serve, args=(theirs, rank), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        size: int | None = None,
        deadline: float = 60,
        hosts: str = "",
        tuning: dict[str, str] | None = None,
    ) -> list[Any]:
        """Call function(rank, size, *args) in a fresh group of the first `size` ranks.

        hosts: a letter for each rank, as "aabb": which emulated host it is on.
        tuning: what to put in SMDIST_ variables; {}: all is measured; None: one of TUNINGS.
        """
        answers = self.outcomes(
            function, *args, size=size, deadline=deadline, hosts=hosts, tuning=tuning
        )
        failed = [f"rank {rank}:\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        if failed:
            raise RankFailedError("\n".join(failed))
        return [value for _, value in answers]

    def outcomes(
        self,
        function: Callable[..., Any],
        *args: Any,
        size: int | None = None,
        deadline: float = 60,
        hosts: str = "",
        tuning: dict[str, str] | None = None,
    ) -> list[tuple[bool, Any]]:
        """As run(), but (True, value) or (False, traceback) per rank."""
        size = size or self.size
        self._ranks += [self._start(rank) for rank in range(len(self._ranks), size)]
        self._calls += 1
        # A store's file outlives the call: ranks still close it after they answered.
        if tuning is None:
            tuning = {**_LINES, **TUNINGS[self._calls % len(TUNINGS)]}
        print(f"tuning of the ranks: {tuning}")  # which pytest shows if the test fails
        store = f"{self._folder.name}/store-{self._calls}"
        for rank, (_, pipe) in enumerate(self._ranks[:size]):
            place = (function.__globals__["__file__"], function.__name__)
            environ = {"SMDIST_HOST_ID": hosts[rank : rank + 1]}  # empty: found out
            environ |= {f"SMDIST_{name}": value for name, value in tuning.items()}
            pipe.send((*place, size, store, environ, args))
        return [self._answer(rank, deadline) for rank in range(size)]

    def _answer(self, rank: int, deadline: float) -> tuple[bool, Any]:
        process, pipe = self._ranks[rank]
        try:
            if pipe.poll(deadline):
                return pipe.recv()
            process_said = f"no answer in {deadline} s; its stacks are in the captured output"
        except EOFError:
            process.join(5)
            process_said = f"died with exit code {process.exitcode}"
        self._replace(rank)
        return False, process_said

    def _replace(self, rank: int) -> None:
        process, pipe = self._ranks[rank]
        if process.is_alive():
            _abort(process)
        pipe.close()
        self._ranks[rank] = self._start(rank)

    def close(self) -> None:
        """End every rank."""
        for process, pipe in self._ranks:
            pipe.close()
            process.join(10)
            if process.is_alive():
                _abort(process)
        self._folder.cleanup()


def _abort(process: multiprocessing.process.BaseProcess) -> None:
    """Let faulthandler print every thread's stack, then make sure that the rank is gone."""
    os.kill(process.pid, signal.SIGABRT)
    process.join(5)
    process.kill()


def _serve(pipe: Connection, rank: int) -> None:
    faulthandler.enable(all_threads=True)
    import torch.distributed as dist

    import smdist.dataparallel.torch  # noqa: F401  registers the backend

    while True:
        try:
            path, name, size, store, environ, args = pipe.recv()
        except EOFError:
            return
        try:
            for variable in _VARIABLES:
                os.environ[variable] = environ.get(variable, "")
            function = getattr(_load(path), name)
            dist.init_process_group(
                "smdist", store=dist.FileStore(store, size), rank=rank, world_size=size
            )
            pipe.send((True, function(rank, size, *args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            _forget_meshes()


def _forget_meshes() -> None:
    """DTensor takes equal meshes for one, and would look for groups of the call before."""
    from torch.distributed.tensor import _redistribute, debug

    debug._clear_sharding_prop_cache()
    _redistribute._gen_transform_infos.cache_clear()


def _load(path: str) -> Any:
    name = f"ranks_{Path(path).stem}_{zlib.crc32(path.encode()):x}"  # rooms have files of one name
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
