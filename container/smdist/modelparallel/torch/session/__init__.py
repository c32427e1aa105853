# SPDX-License-Identifier: Apache-2.0
"""smp.init, and what it leaves: the options, this rank's place, and its groups.

    import smdist.modelparallel.torch as smp
    smp.init({"pipeline_parallel_degree": 2, "microbatches": 4})

It starts torch.distributed if nobody did, under our launcher, under torchrun, or in a single
process. A session lives as long as torch's default group: what was made on another one is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError
from smdist.config import RankConfig, read_rank_config
from smdist.modelparallel.torch.groups import default_group, new_group
from smdist.modelparallel.torch.mail.post import gather
from smdist.modelparallel.torch.session.agreement import Card, check, check_same, place
from smdist.modelparallel.torch.session.options import Config, chosen, with_plan
from smdist.modelparallel.torch.session.session import Session
from smdist.modelparallel.torch.session.world import start, take_device

__all__ = ["Config", "Session", "current", "end", "init", "is_initialized"]

_sessions: list[Session] = []  # none, or the one


def init(config: Config = None) -> Session:
    """Start model parallelism; every rank calls it, with the same configuration.

    Args:
        config: SMP v1's parameters as a dict, the path of a JSON file with them, or
            `ModelParallel(...)`. What the job was given (`distribution=`) overrides it. Default:
            the job's, else that of `ModelParallel()`, whose planner decides.

    Raises:
        OptionError: Options are wrong, ranks do not divide, or there is a session with other
            ones; on every rank, whichever it happened on.
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
    """The session that smp.init made.

    Raises:
        OptionError: There is none.
    """
    session = _running()
    if session is None:
        raise OptionError(
            "there is no session of model parallelism",
            "smp.init() was not called, or torch.distributed was destroyed since",
            "Call smp.init() first",
        )
    return session


def is_initialized() -> bool:
    """Whether smp.init was called, and torch.distributed is still the one it was called on."""
    return _running() is not None


def end() -> None:
    """Forget the session; torch.distributed ends too if smp.init started it."""
    session = _running()
    _sessions.clear()
    if session is not None and session.is_ours:
        dist.destroy_process_group()


def _running() -> Session | None:
    """The session, unless torch's default group is another one by now."""
    for session in _sessions:
        if dist.is_initialized() and session.world is dist.group.WORLD:
            return session
    return None


def _begin(config: Config, rank_config: RankConfig, *, is_ours: bool) -> Session:
    world = default_group()
    options, cards = _exchange(config, rank_config, world)
    local_rank, local_size = place(cards, world.rank())
    session = Session(
        options=options,
        world=world,
        mail=new_group(range(world.size()), world),
        hosts=_numbered([card.host for card in cards]),
        local_rank=local_rank,
        local_size=local_size,
        is_ours=is_ours,
    )
    if isinstance(options.pipeline_parallel_degree, int):
        session.decide(options.pipeline_parallel_degree)
    return session


def _exchange(
    config: Config, rank_config: RankConfig, world: dist.ProcessGroup
) -> tuple[ModelParallel, list[Card]]:
    """Read the options, and learn of all ranks what they read; a fault of one is that of all."""
    options: ModelParallel | None = None
    plan = ""
    fault: Exception | None = None
    try:
        options, plan = with_plan(chosen(config, rank_config.model_parallel))
        options.replicas(world.size())
        take_device(rank_config)
    except Exception as error:  # whatever it is, others wait for this rank
        fault = error
    card = Card(
        options=options,
        plan=plan,
        fault=str(fault or ""),
        host=_host(rank_config),
        local_rank=rank_config.local_rank,
    )
    cards = gather(card, world)
    if fault is not None:
        raise fault
    check(cards)
    assert options is not None  # or there was a fault
    return options, cards


def _host(rank_config: RankConfig) -> str:
    from smdist.dataparallel.rendezvous.host import (
        host_identity,
    )

    return host_identity(rank_config)


def _numbered(hosts: Sequence[str]) -> tuple[int, ...]:
    order = list(dict.fromkeys(hosts))
    return tuple(order.index(host) for host in hosts)
