# SPDX-License-Identifier: Apache-2.0
"""Joining the other ranks and leaving them: one engine per process, which all ops use."""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass
from functools import cache

from sagemaker_dist.contract import DataParallel
from sagemaker_dist.errors import OptionError, require
from smdist.config import read_rank_config
from smdist.dataparallel.rendezvous.connect import name_of
from smdist.dataparallel.rendezvous.engine import Engine
from smdist.dataparallel.rendezvous.meet import meet
from smdist.dataparallel.rendezvous.world import World, world_of
from smdist.dataparallel.tensorflow import omissions
from smdist.dataparallel.tensorflow.interrupts import Watch, num_ended
from smdist.dataparallel.tensorflow.library import compiled

_FORKED = 'Call it in the rank itself, or start the process by "spawn"'


@dataclass(frozen=True, slots=True)
class _Joined:
    """What init() has made.

    Attributes:
        process: Its id; a forked child has another one, and no engine.
        calls: How many collectives had ended before.
    """

    world: World
    engine: Engine
    watch: Watch
    process: int
    calls: int


_joined: list[_Joined] = []  # one, or none


def init() -> None:
    """Join the other ranks of the job; once more does nothing.

    All ranks call it, before anything else of this package. A process that was
    not started as a rank is a job of its own, of size 1.

    Raises:
        OptionError: The environment says only half of which rank this is, or
            this process was forked from a rank.
        LaunchError: A rank did not come within the start timeout, or has gone.
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
        omissions.warn(
            f"the job has {config.hosts_without_ranks} hosts and no ranks: each trains a model of"
            " its own. Pass distribution=DataParallel() to the estimator"
        )


def shutdown() -> None:
    """Leave the other ranks; init() joins them again. Nothing where nothing was joined.

    Operations that are still on their way fail: wait for them first.
    """
    if not is_initialized():
        return
    _look_back()
    joined = _joined.pop()
    joined.watch.stop()
    joined.engine.shutdown()
    compiled().release()


def is_initialized() -> bool:
    """Whether this process has joined the others and not left them."""
    return bool(_joined) and _joined[0].process == os.getpid()


def rank() -> int:
    """This rank's number in the job, from 0.

    Raises:
        OptionError: init() was not called.
    """
    return _world("rank").rank


def size() -> int:
    """How many ranks the job has.

    Raises:
        OptionError: init() was not called.
    """
    return _world("size").size


def local_rank() -> int:
    """This rank's number on its host, from 0.

    Raises:
        OptionError: init() was not called.
    """
    return _world("local_rank").local_rank


def local_size() -> int:
    """How many ranks this host has.

    Raises:
        OptionError: init() was not called.
    """
    return _world("local_size").local_size


def engine() -> Engine:
    """The engine that all ops of this process use.

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
    """Before rank 0 leaves, by shutdown() or at its end."""
    if is_initialized() and _joined[0].world.rank == 0:
        omissions.look_back(_joined[0].world.size, num_ended(compiled()) - _joined[0].calls)


def _world(asked: str) -> World:
    """Also in a forked child, such as a worker that reads data."""
    require(
        bool(_joined),
        what=f"smdist was used before init(), by {asked}()",
        why="this process has not joined the other ranks, or has left them",
        mend="Call smdist.dataparallel.tensorflow.init() first",
    )
    return _joined[0].world


def _check_process(asked: str) -> None:
    if not is_initialized():
        raise OptionError(
            f"{asked}() was called in a process that was forked from rank {_joined[0].world.rank}",
            "the engine stays with the rank",
            _FORKED,
        )
