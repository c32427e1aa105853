# SPDX-License-Identifier: Apache-2.0
"""Start and end of a process's membership in the job: one engine per process, used by all ops."""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass
from functools import cache

from sagemaker_dist.contract import DataParallel
from sagemaker_dist.errors import OptionError, require
from smdist.config import read_rank_config
from smdist.dataparallel.rendezvous.connect import name_of
from smdist.dataparallel.rendezvous.engine_interface import Engine
from smdist.dataparallel.rendezvous.engine_setup import meet
from smdist.dataparallel.rendezvous.world import World, world_of
from smdist.dataparallel.tensorflow import setup_hints
from smdist.dataparallel.tensorflow.interrupts import Watch, num_ended
from smdist.dataparallel.tensorflow.op_library import compiled

_FORKED = 'Call it in the rank itself, or start the process by "spawn"'


@dataclass(frozen=True, slots=True)
class _Joined:
    """State that init() creates.

    Attributes:
        process: The process id; a forked child has another id, and no engine.
        calls: Number of collectives that had ended before init().
    """

    world: World
    engine: Engine
    watch: Watch
    process: int
    calls: int


_joined: list[_Joined] = []  # at most one


def init() -> None:
    """Join the other ranks of the job; a second call does nothing.

    All ranks call this before anything else of this package. A process that was
    not started as a rank is a job of its own, of size 1.

    Raises:
        OptionError: The environment describes the rank only in part, or
            this process was forked from a rank.
        LaunchError: A rank did not arrive within the start timeout, or was lost.
        SkewError: Ranks run different releases of the runtime.
        SetupError: This runtime was built without TensorFlow.
    """
    if _joined:
        _check_process("init")
        return
    config = read_rank_config()
    world = world_of(config)
    module = compiled()
    engine = meet(world, config, module)
    module.adopt(engine, float(config.timeout_seconds or DataParallel().timeout_seconds))
    watch = Watch(engine, name_of(world.rank, config), module)
    _joined.append(_Joined(world, engine, watch, os.getpid(), num_ended(module)))
    _see_to_the_end()
    if config.hosts_without_ranks:
        setup_hints.warn(
            f"the job has {config.hosts_without_ranks} hosts and no ranks: each trains a model of"
            " its own. Pass distribution=DataParallel() to the estimator"
        )


def shutdown() -> None:
    """Leave the other ranks; init() joins them again. Does nothing before init().

    Operations in flight fail: wait for them first.
    """
    if not is_initialized():
        return
    _look_back()
    joined = _joined.pop()
    joined.watch.stop()
    joined.engine.shutdown()
    compiled().release()


def is_initialized() -> bool:
    """Return whether this process has joined the other ranks and not left them."""
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


def engine() -> Engine:
    """Return the engine that all ops of this process use.

    Raises:
        OptionError: init() was not called, or this process was forked from a rank.
    """
    _world("engine")
    _check_process("engine")
    return _joined[0].engine


@cache
def _see_to_the_end() -> None:
    atexit.register(_look_back)


def _look_back() -> None:
    """Print setup hints when rank 0 leaves, by shutdown() or at the end of its process."""
    if is_initialized() and _joined[0].world.rank == 0:
        setup_hints.look_back(_joined[0].world.size, num_ended(compiled()) - _joined[0].calls)


def _world(asked: str) -> World:
    """Return the joined world, also in a forked child, such as a data worker."""
    require(
        bool(_joined),
        what=f"smdist was used before init(), by {asked}()",
        why="this process has not joined the other ranks, or has left them",
        hint="Call smdist.dataparallel.tensorflow.init() first",
    )
    return _joined[0].world


def _check_process(asked: str) -> None:
    if not is_initialized():
        raise OptionError(
            f"{asked}() was called in a process that was forked from rank {_joined[0].world.rank}",
            "the engine stays with the rank",
            _FORKED,
        )
