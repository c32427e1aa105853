# SPDX-License-Identifier: Apache-2.0
"""Backend "smdist" of torch.distributed, which runs all process groups on one engine.

The backend of the default group connects the engine and owns it. Every other group
is a numbered communicator of the same engine, over the same connections. If the default group
has another backend, each group on "smdist" has an engine of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import _DistributedBackendOptions

from sagemaker_dist.errors import OptionError, require
from smdist.config import RankConfig, read_rank_config
from smdist.dataparallel.rendezvous.connect import connect, decline, rank_name
from smdist.dataparallel.rendezvous.engine_shutdown import (
    call_after_shutdown,
    call_before_shutdown,
    register_engine,
    register_shutdown,
)
from smdist.dataparallel.rendezvous.host_identity import host_identity
from smdist.dataparallel.torch import _C
from smdist.dataparallel.torch.step_report import finish
from smdist.dataparallel.torch.torch_store import TorchStore
from smdist.dataparallel.torch.two_levels import STAGED, LevelDecider, group_number

NAME = "smdist"
_DEFAULT_GROUP = 0
_TORCH_DEFAULT_SECONDS = 1800.0
# (engine, timeout in seconds) of the default group; empty if it has another backend
_world: list[tuple[_C.Engine, float]] = []
# limits for tensors on devices, by the names of make_backend(); tests set them
_device_limits: dict[str, Any] = {}


def world_engine() -> tuple[_C.Engine, float] | None:
    """Return (engine, timeout in seconds) of the default group; None if it has another backend."""
    return _world[0] if _world and _world[0][0].is_running() else None


def register(name: str = NAME) -> None:
    """Register the backend with torch under `name`, for CPU and CUDA tensors.

    If the backend is registered under a second name, groups of both names share one engine.
    """
    if hasattr(dist.Backend, name.upper()):
        return
    dist.Backend.register_backend(name, create_backend, extended_api=True, devices=["cpu", "cuda"])
    if name == NAME:
        register_shutdown()
        call_before_shutdown(_C.finish_staging)
        call_after_shutdown(_C.stop_staging)
        os.register_at_fork(after_in_child=_world.clear)


def create_backend(options: _DistributedBackendOptions, pg_options: Any) -> dist.Backend:
    """Create the backend object of one process group; torch calls this on each of its ranks.

    Args:
        options: The group's ranks, store and timeout, from torch.
        pg_options: The script's options for the group; must be None.

    Raises:
        OptionError: `pg_options` is given, this rank's environment variables are wrong, or
            ranks have different options.
    """
    require(
        pg_options is None,
        what=f"pg_options is {pg_options!r}",
        why="the backend smdist has no options for single groups",
        hint="Leave pg_options out; DataParallel(...) sets the options of the whole job",
        about="pg_options",
    )
    config = _config(options)
    members = list(options.global_ranks_in_group)
    rank, size = options.group_rank, options.group_size
    is_default = not dist.is_initialized()
    if not is_default and _world and _world[0][0].is_running():
        engine, of_world = _world[0]
        group = group_number(options.group_id)
        engine.add_group(group, members)
        timeout = _timeout_seconds(options, of_world)
        return _backend(options, config, engine, group, members, timeout)(owns_engine=False)
    timeout = _timeout_seconds(options, config.timeout_seconds)
    engine = connect(TorchStore(options.store), rank, size, config, _C)
    engine.add_group(_DEFAULT_GROUP, list(range(size)))
    register_engine(engine, rank_name(rank, config))
    _world[:] = [(engine, timeout)] if is_default else _world
    before = finish if is_default else None
    make = _backend(options, config, engine, _DEFAULT_GROUP, list(range(size)), timeout)
    return make(owns_engine=True, before_shutdown=before)


def _backend(
    options: _DistributedBackendOptions,
    config: RankConfig,
    engine: _C.Engine,
    group: int,
    members: list[int],
    timeout: float,
) -> Callable[..., dist.Backend]:
    """Return make_backend() with the arguments that all groups of an engine have.

    `group` is the group's number in the engine, `members` are its ranks there, and `timeout` is in
    seconds.
    """
    return partial(
        _C.make_backend,
        engine,
        group,
        options.group_rank,
        options.group_size,
        timeout,
        decide_levels=_decider(options, config, engine, members, timeout),
        **{"wait_blocks_host": config.device_wait == "host", **_device_limits},
    )


def _config(options: _DistributedBackendOptions) -> RankConfig:
    """Return this rank's configuration; if it has faults, publish them before raising them.

    The faults are published in the store of `options`. The other ranks, which wait for this rank,
    then fail at once.
    """
    try:
        return read_rank_config()
    except OptionError as error:
        with suppress(RuntimeError):  # the store no longer exists
            decline(TorchStore(options.store), options.group_rank, options.group_size, error)
        raise


def _timeout_seconds(options: _DistributedBackendOptions, default: float | None) -> float:
    """Return the group's timeout in seconds: the script's if it has set one, else `default`.

    The script has set a timeout if the timeout in `options` is not torch's own default of 30
    minutes. If `default` is None, return the timeout in `options` in any case.
    """
    of_script = float(options.timeout.total_seconds())
    return default if default and of_script == _TORCH_DEFAULT_SECONDS else of_script


def _decider(
    options: _DistributedBackendOptions,
    config: RankConfig,
    engine: _C.Engine,
    members: list[int],
    timeout_seconds: float,
) -> LevelDecider | None:
    """Return the function that decides between two levels and staging; None: always staged.

    Args:
        options: The group's ranks and store, from torch.
        config: This rank's configuration.
        engine: The engine of the group.
        members: Ranks of the group in the engine.
        timeout_seconds: The group's timeout.
    """
    if config.gpu_collectives == STAGED:
        return None
    return LevelDecider(
        option=config.gpu_collectives,
        is_world=not dist.is_initialized(),
        engine=engine,
        group_name=options.group_id,
        members=members,
        rank=options.group_rank,
        host=host_identity(config),
        store=options.store,
        timeout=timedelta(seconds=timeout_seconds),
    )
