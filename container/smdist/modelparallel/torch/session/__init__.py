# SPDX-License-Identifier: Apache-2.0
"""Session of model parallelism: the state that smp.init makes in this process.

    import smdist.modelparallel.torch as smp

    smp.init({"pipeline_parallel_degree": 2, "microbatches": 4})

A session has the options, this rank's position and its process groups. smp.init initializes
torch.distributed if the script has not. The script may run under this project's launcher, under
torchrun, or as a single process. The session ends when torch's default group is destroyed or
replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError
from smdist.config import RankConfig, read_rank_config
from smdist.modelparallel.core.session_agreement import (
    RankOptions,
    check,
    check_same,
    place,
)
from smdist.modelparallel.core.session_options import Config, chosen, with_plan
from smdist.modelparallel.torch.session.object_collectives import all_gather_object
from smdist.modelparallel.torch.session.process_group_init import start, take_device
from smdist.modelparallel.torch.session.process_groups import default_group, new_group
from smdist.modelparallel.torch.session.session import Session

__all__ = ["Config", "Session", "current", "end", "init", "is_initialized"]

_sessions: list[Session] = []  # current session, if any


def init(config: Config = None) -> Session:
    """Start model parallelism; every rank calls this with the same configuration.

    Args:
        config: `ModelParallel(...)`, a dict with SMP v1's parameters, or the path of a JSON file
            with such a dict. Options of the job (`distribution=`) override this configuration. If
            there is neither, the planner chooses all degrees.

    Returns:
        The new session; the running one if smp.init was called before.

    Raises:
        OptionError: Options are wrong, the pipeline degree does not divide the number of ranks, or
            a session with other options is running; raised on every rank.
    """
    rank_config = read_rank_config()
    running = _running()
    if running is not None:
        if config is not None:
            check_same(running.options, with_plan(chosen(config, rank_config.model_parallel))[0])
        return running
    _sessions.clear()
    is_ours = start(rank_config)
    try:
        session = _begin(config, rank_config, is_ours=is_ours)
    except BaseException:
        if is_ours:
            dist.destroy_process_group()
        raise
    _sessions.append(session)
    return session


def current() -> Session:
    """Return the session that smp.init made.

    Raises:
        OptionError: smp.init was not called, or its session has ended.
    """
    session = _running()
    if session is None:
        raise OptionError(
            "there is no session of model parallelism",
            "smp.init() was not called, or torch's default process group was destroyed later",
            "Call smp.init() first",
            kind="not_initialized",
        )
    return session


def is_initialized() -> bool:
    """Tell whether smp.init was called and torch's default group is still the same."""
    return _running() is not None


def end() -> None:
    """End the session, if there is one; end torch.distributed as well if smp.init started it."""
    session = _running()
    _sessions.clear()
    if session is not None and session.is_ours:
        dist.destroy_process_group()


def _running() -> Session | None:
    """Return the session; None before smp.init, or if torch's default group was replaced."""
    for session in _sessions:
        if dist.is_initialized() and session.world is dist.group.WORLD:
            return session
    return None


def _begin(config: Config, rank_config: RankConfig, *, is_ours: bool) -> Session:
    """Make a session from the options of smp.init and of the job; all ranks must call this.

    Args:
        config: Argument of smp.init.
        rank_config: Configuration of this rank from its environment, with the options of the job.
        is_ours: True if smp.init started torch.distributed.
    """
    world = default_group()
    options, every = _exchange(config, rank_config, world)
    local_rank, local_size = place(every, world.rank())
    session = Session(
        options=options,
        world=world,
        message_group=new_group(range(world.size()), world),
        hosts=_numbered([each.host for each in every]),
        local_rank=local_rank,
        local_size=local_size,
        is_ours=is_ours,
    )
    degree = options.pipeline_parallel_degree
    if options.tensor_parallel_degree > 1 and not isinstance(degree, int):
        degree = 1  # the planner does not choose it together with tensor parallelism
    if isinstance(degree, int):
        session.decide(degree)
    return session


def _exchange(
    config: Config, rank_config: RankConfig, world: dist.ProcessGroup
) -> tuple[ModelParallel, list[RankOptions]]:
    """Read this rank's options, and compare the options of all ranks; all ranks must call this.

    Args:
        config: Argument of smp.init.
        rank_config: Configuration of this rank from its environment, with the options of the job.
        world: Default process group.

    Returns:
        Options of the session, and the options and hosts of all ranks, by rank.

    Raises:
        OptionError: The options of a rank are wrong, or differ; raised on every rank.
    """
    options: ModelParallel | None = None
    plan = ""
    fault: Exception | None = None
    try:
        options, plan = with_plan(chosen(config, rank_config.model_parallel))
        options.replicas(world.size())
        take_device(rank_config)
    except Exception as error:  # any error, since other ranks wait for this one
        fault = error
    own = RankOptions(
        options=options,
        plan=plan,
        fault=str(fault or ""),
        host=_host(rank_config),
        local_rank=rank_config.local_rank,
    )
    every = all_gather_object(own, world)
    if fault is not None:
        raise fault
    check(every)
    assert options is not None  # None only with a fault
    return options, every


def _host(rank_config: RankConfig) -> str:
    """Return a name of this rank's host, which is equal on all ranks of that host."""
    from smdist.dataparallel.rendezvous.host_identity import (
        host_identity,
    )

    return host_identity(rank_config)


def _numbered(hosts: Sequence[str]) -> tuple[int, ...]:
    """Replace host names by numbers from 0, in the order in which hosts first appear.

    Args:
        hosts: Name of each rank's host, by rank.
    """
    order = list(dict.fromkeys(hosts))
    return tuple(order.index(host) for host in hosts)
