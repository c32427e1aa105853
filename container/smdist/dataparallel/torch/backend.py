# SPDX-License-Identifier: Apache-2.0
"""From torch's process groups to communicators of the one engine.

The default group's backend connects the engine and owns it; every other group
is a numbered communicator over the same connections. Where the default group
is another backend's, a group gets an engine of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import zlib
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import _DistributedBackendOptions

from sagemaker_dist.errors import require
from smdist.config import read_rank_config
from smdist.dataparallel.torch import _C
from smdist.dataparallel.torch.rendezvous import connect, name_of
from smdist.dataparallel.torch.reporting import finish

NAME = "smdist"
_DEFAULT_GROUP = 0
_MOST_WORDS = 1000  # characters of the reason why a rank ends
_TORCH_DEFAULT_SECONDS = 1800.0
_live: list[tuple[_C.Engine, str]] = []  # engines, with what others call this rank
_world: list[tuple[_C.Engine, float]] = []  # the default group's, if that is ours; its timeout
_left_to_the_parent: list[_C.Engine] = []  # in a forked child: never used, never destroyed


def register(name: str = NAME) -> None:
    """Tell torch of the backend; CUDA tensors reach it too, to be refused with the mend.

    A second name stands for the same backend: groups of both share one engine.
    """
    if hasattr(dist.Backend, name.upper()):
        return
    dist.Backend.register_backend(name, create_backend, extended_api=True, devices=["cpu", "cuda"])
    if name == NAME:
        atexit.register(_say_goodbye)
        os.register_at_fork(after_in_child=_leave_to_the_parent)


def create_backend(options: _DistributedBackendOptions, pg_options: Any) -> dist.Backend:
    """Make the backend of one process group; torch calls this on every member.

    Raises:
        OptionError: `pg_options` is given.
    """
    require(
        pg_options is None,
        what=f"pg_options is {pg_options!r}",
        why="the backend smdist has no options per group",
        mend="Leave pg_options out; DataParallel(...) sets the options of a job",
    )
    config = read_rank_config()
    members = list(options.global_ranks_in_group)
    rank, size = options.group_rank, options.group_size
    is_default = not dist.is_initialized()
    if not is_default and _world and _world[0][0].is_running():
        engine, of_world = _world[0]
        group = _group_number(options.group_id)
        engine.add_group(group, members)
        timeout = _timeout_seconds(options, of_world)
        return _C.make_backend(engine, group, rank, size, timeout, owns_engine=False)
    timeout = _timeout_seconds(options, config.timeout_seconds)
    engine = connect(options.store, rank, size, config)
    engine.add_group(_DEFAULT_GROUP, list(range(size)))
    _live[:] = [each for each in _live if each[0].is_running()] + [(engine, name_of(rank, config))]
    _world[:] = [(engine, timeout)] if is_default else _world
    before = finish if is_default else None
    return _C.make_backend(
        engine, _DEFAULT_GROUP, rank, size, timeout, owns_engine=True, before_shutdown=before
    )


def abort(reason: str) -> None:
    """Fail all that is on its way and all that comes later, here and on all other ranks.

    Errors on all of them say `reason`; the first failure of an engine wins.
    """
    for engine, _ in _live:
        if engine.is_running():
            engine.abort(reason)


def _timeout_seconds(options: _DistributedBackendOptions, otherwise: float | None) -> float:
    """What the script gave for this group, else the default group's, or for that one the job's."""
    of_script = float(options.timeout.total_seconds())
    return otherwise if otherwise and of_script == _TORCH_DEFAULT_SECONDS else of_script


def _group_number(name: str) -> int:
    """Every member derives the same number; the engine refuses one that is taken."""
    return zlib.crc32(name.encode()) or 1


def _say_goodbye() -> None:
    """Tell the others why this rank ends: it raised, or it has simply finished."""
    error = getattr(sys, "last_value", None)
    while _live:
        engine, name = _live.pop()
        if error is not None:
            engine.abort(reason_of(name, error))
        engine.shutdown()


def reason_of(name: str, error: BaseException) -> str:
    """Why a rank ends, on one line: logs and other ranks may keep no more of it."""
    return f"{name} raised {type(error).__name__}: {' '.join(str(error).split())}"[:_MOST_WORDS]


def _leave_to_the_parent() -> None:
    """A forked child, such as a DataLoader worker, must not keep the rank's connections open."""
    for engine, _ in _live:
        engine.close_in_child()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))  # its threads are not here to join
        _left_to_the_parent.append(engine)
    _live.clear()
    _world.clear()
