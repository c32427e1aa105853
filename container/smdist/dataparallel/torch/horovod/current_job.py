# SPDX-License-Identifier: Apache-2.0
"""Functions init() and shutdown(), the numbers of this rank, and registration of process sets.

The engine is the one of torch.distributed if its default group has the backend smdist when init()
is called. Otherwise init() connects an engine of its own, and torch.distributed may be
initialized later, with any backend.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from sagemaker_dist.contract import DataParallel
from sagemaker_dist.errors import OptionError
from smdist.config import RankConfig, read_rank_config
from smdist.dataparallel.horovod_timeline import start_if_requested as start_timeline_if_requested
from smdist.dataparallel.horovod_timeline import stop_if_started as stop_timeline_if_started
from smdist.dataparallel.process_sets import check_init_arguments, new_process_set
from smdist.dataparallel.rendezvous.engine_interface import Engine
from smdist.dataparallel.rendezvous.engine_setup import connect_world
from smdist.dataparallel.rendezvous.store import Store
from smdist.dataparallel.rendezvous.world import World, world_of
from smdist.dataparallel.torch import _C
from smdist.dataparallel.torch.backend import NAME, world_engine
from smdist.dataparallel.torch.horovod import handles
from smdist.dataparallel.torch.horovod.communicator import Communicator
from smdist.dataparallel.torch.horovod.process_set import (
    ProcessSet,
    check_initialized,
    global_process_set,
)


@dataclass(slots=True)
class _CurrentJob:
    """State of this process between init() and shutdown().

    Attributes:
        world: Numbers of this rank.
        engine: The connected engine.
        owns_engine: True if shutdown() also shuts down the engine.
        timeout_seconds: Seconds that an operation waits for a peer.
        session: Number of the call of init() with this engine, from 1.
        process: The process id at init(); a forked child has another one.
        sets: The registered process sets by number.
        next_set: Number of the next process set.
    """

    world: World
    engine: Any
    owns_engine: bool
    timeout_seconds: float
    session: int
    process: int
    sets: dict[int, ProcessSet]
    next_set: int = 0


_current: list[_CurrentJob] = []  # at most one
_sessions: list[tuple[Any, int]] = []  # (engine, calls of init() with it) of the last engine


def init(comm: Any = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """Connect this rank to all others of the job; all ranks must call it. Twice does nothing.

    A process that was not started as a rank becomes the only rank of a job of size 1.

    Args:
        comm: None, or a list of all ranks of the job. Other lists, and communicators of MPI, are
            refused: start a job with these ranks, or use process sets.
        process_sets: Process sets to register, in the same order on all ranks. Further sets can
            always be added with add_process_set(); "dynamic" is the same as none.

    Raises:
        OptionError: An argument is wrong, some environment variables of the rank are missing or
            wrong, the file that HOROVOD_TIMELINE names cannot be written, or this process was
            forked from a rank.
        LaunchError: A rank was missing after the start timeout, or was lost.
    """
    if _current:
        _job("init")
        return
    config = read_rank_config()
    world = _world(config)
    sets = check_init_arguments(comm, process_sets, world.size)
    shared = world_engine() if _shares_engine() else None
    engine = shared[0] if shared else connect_world(world, config, _C)
    seconds = shared[1] if shared else _timeout_of(config)
    _begin(world, engine, shared is None, seconds)
    for each in sets:
        add_process_set(each)
    start_timeline_if_requested(engine, world.rank)


def rejoin(world: World, store: Store) -> None:
    """Connect this rank, after shutdown(), to the ranks that are left of an elastic job.

    Args:
        world: Numbers of this rank in the new world.
        store: Store that its ranks can reach.

    Raises:
        LaunchError: A rank was missing after the start timeout, or was lost.
    """
    config = read_rank_config()
    _begin(world, connect_world(world, config, _C, store), True, _timeout_of(config))


def _timeout_of(config: RankConfig) -> float:
    return float(config.timeout_seconds or DataParallel().timeout_seconds)


def _begin(world: World, engine: Any, owns_engine: bool, timeout_seconds: float) -> None:
    last = next((number for each, number in _sessions if each is engine), 0)
    _sessions[:] = [(engine, last + 1)]
    job = _CurrentJob(world, engine, owns_engine, timeout_seconds, last + 1, os.getpid(), {})
    _current.append(job)
    _register(job, global_process_set, list(range(world.size)))


def shutdown() -> None:
    """Disconnect this rank from the others; init() connects it again. Does nothing before init().

    Operations that have not ended fail, so wait for them first.
    """
    if not is_initialized():
        return
    stop_timeline_if_started()
    job = _current.pop()
    handles.forget_all()
    for each in job.sets.values():
        if each.included():
            each.communicator().close()
        each.bind(None, each.ranks, -1, None)
    if job.owns_engine:
        job.engine.shutdown()
        _sessions.clear()


def is_initialized() -> bool:
    """Return True after init() and before shutdown(); False in a process forked from a rank."""
    return bool(_current) and _current[0].process == os.getpid()


def rank() -> int:
    """Return this rank's number in the job, from 0.

    Raises:
        OptionError: init() was not called.
    """
    return _job("rank").world.rank


def size() -> int:
    """Return the number of ranks of the job.

    Raises:
        OptionError: init() was not called.
    """
    return _job("size").world.size


def local_rank() -> int:
    """Return this rank's number on its host, from 0.

    Raises:
        OptionError: init() was not called.
    """
    return _job("local_rank").world.local_rank


def local_size() -> int:
    """Return the number of ranks on this host.

    Raises:
        OptionError: init() was not called.
    """
    return _job("local_size").world.local_size


def cross_rank() -> int:
    """Return the number of this rank's host, from 0, where all hosts have as many ranks.

    Raises:
        OptionError: init() was not called, or hosts have different numbers of ranks.
    """
    world = _job("cross_rank").world.require_even("cross_rank")
    return world.rank // world.local_size


def cross_size() -> int:
    """Return the number of hosts, where all hosts have as many ranks.

    Raises:
        OptionError: init() was not called, or hosts have different numbers of ranks.
    """
    world = _job("cross_size").world.require_even("cross_size")
    return world.size // world.local_size


def is_homogeneous() -> bool:
    """Return True if all hosts have as many ranks as this one, as far as this rank knows.

    Raises:
        OptionError: init() was not called.
    """
    return _job("is_homogeneous").world.is_even


def engine() -> Engine:
    """Return the engine of this process.

    Raises:
        OptionError: init() was not called.
    """
    connected: Engine = _job("engine").engine
    return connected


def owns_engine() -> bool:
    """Return True if init() has connected an engine of its own; False if it uses torch's.

    Raises:
        OptionError: init() was not called.
    """
    return _job("owns_engine").owns_engine


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set, or a list of ranks; all ranks of the job must call it.

    Raises:
        OptionError: A rank does not exist, or a registered set has the same ranks.
    """
    job = _job("add_process_set")
    added = new_process_set(process_set, job.world.size, job.sets)
    _register(job, added, added.ranks)
    global_process_set.communicator().header("barrier", f"add_process_set {added.ranks}")
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; all ranks of the job must call it, without running operations of it.

    Returns:
        True if the set was removed; False for the set of all ranks and for unregistered sets.
    """
    job = _job("remove_process_set")
    number = process_set.process_set_id
    if not number or job.sets.get(number) is not process_set:
        return False
    if process_set.included():
        process_set.communicator().drain()
        process_set.communicator().close()
    del job.sets[number]
    global_process_set.communicator().header("barrier", f"remove_process_set {process_set.ranks}")
    process_set.bind(None, process_set.ranks, -1, None)
    return True


def _register(job: _CurrentJob, process_set: ProcessSet, ranks: list[int]) -> None:
    name = f"horovod/{job.session}/{job.next_set}"
    is_member = job.world.rank in ranks
    communicator = (
        Communicator(job.engine, name, ranks, job.world.rank, job.timeout_seconds)
        if is_member
        else None
    )
    process_set.bind(job.next_set, ranks, job.world.rank, communicator)
    job.sets[job.next_set] = process_set
    job.next_set += 1


def _shares_engine() -> bool:
    return dist.is_initialized() and NAME in dist.get_backend()


def _world(config: RankConfig) -> World:
    """Return this rank's numbers, from torch.distributed if its engine is used."""
    if not _shares_engine():
        return world_of(config)
    rank, size = dist.get_rank(), dist.get_world_size()
    if config.local_rank is not None and config.local_size is not None:
        return World(
            rank=rank, size=size, local_rank=config.local_rank, local_size=config.local_size
        )
    return World(rank=rank, size=size, local_rank=rank, local_size=size)


def _job(function: str) -> _CurrentJob:
    check_initialized(function)
    if _current[0].process != os.getpid():
        raise OptionError(
            f"{function}() was called in a process that was forked from a rank",
            "only the rank's own process can use its engine",
            'Call it in the rank\'s own process, or start the child process with "spawn"',
            about=function,
            kind="forked",
        )
    return _current[0]
