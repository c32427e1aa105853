# SPDX-License-Identifier: Apache-2.0
"""Ranks that live as long as the test session, forked from one process that has imported torch.

A test sends a function to every rank and gets the results. A rank that
does not reply in time prints its stacks and the test fails.
"""

import faulthandler
import importlib.util
import os
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fork_server import Child, ForkServer

# Imported before ranks are forked; the tests' functions import most of them in every rank.
_MODULES = (
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "smdist.dataparallel.torch",
    "smdist.modelparallel.torch",
    "zoo",
)

# Calls use these in turn: results and errors are the same under each, and no start has to measure.
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
    "SMDIST_INTEGRITY",
    "SMDIST_ENCRYPT",
    *(f"SMDIST_{name}" for name in (*_LINES, *TUNINGS[0])),
)


class RankFailedError(AssertionError):
    """A rank raised, died, or did not reply."""


class World:
    """Worker processes, one per rank, with a new torch process group for each call.

    A call for more ranks than are running starts them.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._calls = 0
        self._folder = tempfile.TemporaryDirectory()
        self._server = self._start_server()
        self._ranks = [self._start(rank) for rank in range(size)]

    def _start_server(self) -> ForkServer:
        return ForkServer(_MODULES)

    def _close_server(self) -> None:
        self._server.close()

    def _start(self, rank: int) -> Child:
        return self._server.start(_serve, rank)

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        size: int | None = None,
        deadline: float = 60,
        hosts: str = "",
        tuning: dict[str, str] | None = None,
    ) -> list[Any]:
        """Call function(rank, size, *args) in a new group of the first `size` ranks.

        Args:
            hosts: A letter for each rank, such as "aabb", that names its emulated host.
            tuning: SMDIST_ variables to set; {}: measure everything; None: one of TUNINGS.
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
        """Call the function as run() does; return (True, value) or (False, traceback) per rank."""
        size = size or self.size
        self._ranks += [self._start(rank) for rank in range(len(self._ranks), size)]
        self._calls += 1
        # The store's file must outlive the call, because ranks still close it after their reply.
        if tuning is None:
            tuning = {**_LINES, **TUNINGS[self._calls % len(TUNINGS)]}
        print(f"tuning of the ranks: {tuning}")  # pytest shows this if the test fails
        store = f"{self._folder.name}/store-{self._calls}"
        for rank, child in enumerate(self._ranks[:size]):
            place = (function.__globals__["__file__"], function.__name__)
            environ = {"SMDIST_HOST_ID": hosts[rank : rank + 1]}  # empty: ranks detect their host
            environ |= {f"SMDIST_{name}": value for name, value in tuning.items()}
            child.pipe.send((*place, size, store, environ, args))
        until = time.monotonic() + deadline  # of all ranks: pytest's own limit may not pass first
        return [self._answer(rank, deadline, until) for rank in range(size)]

    def _answer(self, rank: int, deadline: float, until: float) -> tuple[bool, Any]:
        child = self._ranks[rank]
        try:
            if child.pipe.poll(max(0.0, until - time.monotonic())):
                return child.pipe.recv()
            process_said = f"no answer in {deadline} s; its stacks are in the captured output"
        except EOFError:
            process_said = f"died with exit code {child.wait(5)}"
        self._replace(rank)
        return False, process_said

    def _replace(self, rank: int) -> None:
        self._ranks[rank].abort()
        self._ranks[rank].pipe.close()
        self._ranks[rank] = self._start(rank)

    def close(self) -> None:
        """End every rank."""
        for child in self._ranks:
            child.pipe.close()
            if child.wait(10) is None:
                child.abort()
        self._close_server()
        self._folder.cleanup()


def _serve(pipe: Connection, rank: int) -> None:
    faulthandler.enable(all_threads=True)
    import torch
    import torch.distributed as dist

    import smdist.dataparallel.torch  # noqa: F401  registers the backend

    torch.set_num_threads(1)  # ranks share few processors, and threads that wait spin
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
            # A start that failed has taken a name; the next group needs the same one on all ranks.
            dist.distributed_c10d._world.group_count = 0
            _forget_meshes()


def _forget_meshes() -> None:
    """Forget DTensor's meshes: it reuses an equal mesh, whose groups belong to the call before."""
    from torch.distributed.tensor import _redistribute, debug

    debug._clear_sharding_prop_cache()
    _redistribute._gen_transform_infos.cache_clear()


def _load(path: str) -> Any:
    # test folders have files of the same name
    name = f"ranks_{Path(path).stem}_{zlib.crc32(path.encode()):x}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
