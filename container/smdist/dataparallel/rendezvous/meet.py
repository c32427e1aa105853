# SPDX-License-Identifier: Apache-2.0
"""The engine of a rank whose framework brings no store of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smdist.config import RankConfig
from smdist.dataparallel.rendezvous.connect import connect, name_of
from smdist.dataparallel.rendezvous.engine import E, EngineModule
from smdist.dataparallel.rendezvous.goodbye import keep
from smdist.dataparallel.rendezvous.meeting import Guest, Meeting
from smdist.dataparallel.rendezvous.secret import read_secret
from smdist.dataparallel.rendezvous.store import OwnStore, Store
from smdist.dataparallel.rendezvous.tcp_store import open_store
from smdist.dataparallel.rendezvous.world import World

ALL_RANKS = 0  # the group that every engine has


def meet(world: World, config: RankConfig, module: EngineModule[E]) -> E:
    """Wait for all ranks and connect this one's engine; said goodbye to when the process ends.

    Raises:
        LaunchError: A rank did not come within the start timeout, or has gone.
        SkewError: Ranks run different releases of the runtime.
        OptionError: They were given different options.
    """
    with _store(world, config) as store:
        engine = connect(store, world.rank, world.size, config, module)
    engine.add_group(ALL_RANKS, list(range(world.size)))
    keep(engine, name_of(world.rank, config))
    return engine


@contextmanager
def _store(world: World, config: RankConfig) -> Iterator[Store]:
    if world.size == 1 or world.port is None:
        yield OwnStore()
        return
    guest = Guest(
        rank=world.rank,
        size=world.size,
        label=name_of(world.rank, config),
        job=config.job_name,
    )
    meeting = Meeting(
        guest=guest,
        host=world.host,
        port=world.port,
        patience_seconds=config.start_timeout_seconds,
        secret=read_secret(config.secret_file) if config.secret_file else None,
    )
    with open_store(meeting) as store:
        yield store
