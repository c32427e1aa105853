# SPDX-License-Identifier: Apache-2.0
"""Functions init() and shutdown() of a job's process, and functions such as rank() and size().

A process has one engine, which all its TensorFlow ops use.
"""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass
from functools import cache

from sagemaker_dist.contract import DataParallel
from sagemaker_dist.errors import OptionError
from smdist.config import RankConfig, read_rank_config
from smdist.dataparallel.horovod_timeline import start_if_requested as start_timeline_if_requested
from smdist.dataparallel.horovod_timeline import stop_if_started as stop_timeline_if_started
from smdist.dataparallel.rendezvous.connect import rank_name
from smdist.dataparallel.rendezvous.engine_interface import Engine
from smdist.dataparallel.rendezvous.engine_setup import connect_world
from smdist.dataparallel.rendezvous.store import Store
from smdist.dataparallel.rendezvous.world import World, world_of
from smdist.dataparallel.tensorflow import setup_hints
from smdist.dataparallel.tensorflow.interrupts import Watch
from smdist.dataparallel.tensorflow.op_library import compiled
from smdist.dataparallel.tensorflow.set_members import (
    Members,
    ProcessSet,
    called_too_early,
    global_process_set,
)

_FORKED = 'Call it in the rank\'s own process, or start the child process with "spawn"'


@dataclass(frozen=True, slots=True)
class _Joined:
    """State of a process between init() and shutdown().

    Attributes:
        world: Rank, size, local rank and local size of this process, and rank 0's address.
        engine: The connected engine.
        watch: Thread that aborts the engine after Ctrl-C.
        process: The process id at init(); a forked child has another id and cannot use the engine.
        calls: Number of collectives that had been called before init().
        failures: Number of operations that had failed before init().
        timeout_seconds: Seconds that an operation waits for a rank.
        sets: The registered process sets, by number.
        next_set: The number of the next process set, as the only element.
    """

    world: World
    engine: Engine
    watch: Watch
    process: int
    calls: int
    failures: int
    timeout_seconds: float
    sets: dict[int, ProcessSet]
    next_set: list[int]


_joined: list[_Joined] = []  # at most one


def init() -> None:
    """Connect this rank to all other ranks of the job; a second call does nothing.

    All ranks must call it before all other functions of this package. A process that was
    not started as a rank becomes the only rank of a job of size 1.

    Raises:
        OptionError: Some environment variables of the rank are missing or wrong, the file that
            HOROVOD_TIMELINE names cannot be written, or this process was forked from a rank.
        LaunchError: A rank was missing after the start timeout, or was lost.
        SkewError: Ranks run different releases of the runtime.
        SetupError: This runtime was built without TensorFlow.
    """
    if _joined:
        _check_process("init")
        return
    config = read_rank_config()
    _connect(world_of(config), config)
    _register_exit_handler()
    start_timeline_if_requested(engine(), rank())
    if config.hosts_without_ranks:
        setup_hints.warn(
            "the script runs as one plain process on each of the"
            f" {config.hosts_without_ranks} hosts, so each host trains a separate model."
            " Pass distribution=DataParallel() to the estimator"
        )


def shutdown() -> None:
    """Disconnect this rank from the others; init() connects it again. Does nothing before init().

    Operations that have not ended fail, so wait for them first.
    """
    if is_initialized():
        _print_setup_hints()
    leave()


def leave() -> None:
    """Disconnect this rank from the others, without hints; do nothing before init()."""
    if not is_initialized():
        return
    stop_timeline_if_started()
    joined = _joined.pop()
    for each in joined.sets.values():
        each.bind(None, each.ranks, -1, None)
    joined.watch.stop()
    joined.engine.shutdown()
    compiled().release()


def rejoin(world: World, store: Store) -> None:
    """Connect this rank, after leave(), to the ranks that are left of an elastic job.

    Args:
        world: Numbers of this rank in the new world.
        store: Store that its ranks can reach.

    Raises:
        LaunchError: A rank was missing after the start timeout, or was lost.
    """
    _connect(world, read_rank_config(), store)


def _connect(world: World, config: RankConfig, store: Store | None = None) -> None:
    module = compiled()
    engine = connect_world(world, config, module, store)
    timeout_seconds = float(config.timeout_seconds or DataParallel().timeout_seconds)
    module.adopt(engine, timeout_seconds)
    watch = Watch(engine, rank_name(world.rank, config), module)
    everyone = Members(group=0, ranks=tuple(range(world.size)), rank=world.rank)
    global_process_set.bind(0, list(everyone.ranks), world.rank, everyone)
    sets = {0: global_process_set}
    counts = module.num_called(), module.num_failed()
    _joined.append(_Joined(world, engine, watch, os.getpid(), *counts, timeout_seconds, sets, [1]))


def is_initialized() -> bool:
    """Return True after init() and before shutdown(); False in a process forked from a rank."""
    return bool(_joined) and _joined[0].process == os.getpid()


def rank() -> int:
    """Return this rank's number in the job, from 0.

    Raises:
        OptionError: init() was not called.
    """
    return _world("rank").rank


def size() -> int:
    """Return the number of ranks of the job.

    Raises:
        OptionError: init() was not called.
    """
    return _world("size").size


def local_rank() -> int:
    """Return this rank's number on its host, from 0.

    Raises:
        OptionError: init() was not called.
    """
    return _world("local_rank").local_rank


def local_size() -> int:
    """Return the number of ranks on this host.

    Raises:
        OptionError: init() was not called.
    """
    return _world("local_size").local_size


def cross_rank() -> int:
    """Return the number of this rank's host, from 0, where all hosts have as many ranks.

    Raises:
        OptionError: init() was not called, or hosts have different numbers of ranks.
    """
    world = _world("cross_rank").require_even("cross_rank")
    return world.rank // world.local_size


def cross_size() -> int:
    """Return the number of hosts, where all hosts have as many ranks.

    Raises:
        OptionError: init() was not called, or hosts have different numbers of ranks.
    """
    world = _world("cross_size").require_even("cross_size")
    return world.size // world.local_size


def is_homogeneous() -> bool:
    """Return True if all hosts have as many ranks as this one, as far as this rank knows.

    Raises:
        OptionError: init() was not called.
    """
    return _world("is_homogeneous").is_even


def engine(function: str = "engine") -> Engine:
    """Return the engine that all ops of this process use.

    Args:
        function: Name of the function that the script has called, for the error.

    Raises:
        OptionError: init() was not called, or this process was forked from a rank.
    """
    _world(function)
    _check_process(function)
    return _joined[0].engine


def timeout_seconds() -> float:
    """Return how many seconds an operation of this job waits for a rank.

    Raises:
        OptionError: init() was not called.
    """
    _world("timeout_seconds")
    return _joined[0].timeout_seconds


def process_sets(function: str = "process_sets") -> dict[int, ProcessSet]:
    """Return the registered process sets by number; the caller may change it.

    Args:
        function: Name of the function that the script has called, for the error.

    Raises:
        OptionError: init() was not called.
    """
    _world(function)
    return _joined[0].sets


def next_process_set() -> int:
    """Return the number of a new process set, the same on all ranks."""
    _world("add_process_set")
    _joined[0].next_set[0] += 1
    return _joined[0].next_set[0] - 1


@cache
def _register_exit_handler() -> None:
    atexit.register(_print_setup_hints)


def _print_setup_hints() -> None:
    """Print on rank 0 a hint if the script seems not to average gradients or broadcast weights.

    shutdown() calls this function, and so does the exit handler of the process.
    """
    if not is_initialized() or _joined[0].world.rank != 0:
        return
    joined, module = _joined[0], compiled()
    if module.num_failed() == joined.failures:  # after an error, the script is not complete
        setup_hints.hint_at_exit(joined.world.size, module.num_called() - joined.calls)


def _world(function: str) -> World:
    """Return this process's World: its rank and the number of ranks, in the job and on its host.

    In a forked child these are the numbers of the parent.

    Args:
        function: Name of the caller, for the error.

    Raises:
        OptionError: init() was not called.
    """
    if not _joined:
        raise called_too_early(function)
    return _joined[0].world


def _check_process(function: str) -> None:
    if not is_initialized():
        rank = _joined[0].world.rank
        raise OptionError(
            f"{function}() was called in a process that was forked from rank {rank}",
            "only the rank's own process can use its engine",
            _FORKED,
            about=function,
            kind="forked",
        )
