# SPDX-License-Identifier: Apache-2.0
"""Setup of the engine for a framework without a key-value store, such as TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from smdist.config import RankConfig
from smdist.dataparallel.rendezvous.address import listening_address, own_address
from smdist.dataparallel.rendezvous.connect import connect, rank_name
from smdist.dataparallel.rendezvous.engine_interface import E, EngineModule
from smdist.dataparallel.rendezvous.engine_shutdown import register_engine, register_shutdown
from smdist.dataparallel.rendezvous.participants import Participant, RendezvousConfig
from smdist.dataparallel.rendezvous.secret import read_secret
from smdist.dataparallel.rendezvous.store import OwnStore, Store
from smdist.dataparallel.rendezvous.tcp_store import open_store
from smdist.dataparallel.rendezvous.world import World

ALL_RANKS = 0  # number of the group that contains all ranks


def connect_world(
    world: World, config: RankConfig, module: EngineModule[E], store: Store | None = None
) -> E:
    """Wait for all ranks and return this rank's connected engine.

    The engine is shut down when this process ends.

    Args:
        world: This rank's number, the number of ranks, and the address of rank 0.
        config: This rank's configuration.
        module: smdist's compiled module for torch or for TensorFlow.
        store: Store that all ranks can reach; by default the one that rank 0 serves meanwhile.

    Raises:
        LaunchError: A rank was missing after the start timeout, or was lost.
        SkewError: Ranks run different releases of the runtime.
        OptionError: Ranks have different options.
    """
    register_shutdown()  # the exit handler also records the fields of an error of the start
    with nullcontext(store) if store is not None else _store(world, config) as reached:
        engine = connect(reached, world.rank, world.size, config, module)
    engine.add_group(ALL_RANKS, list(range(world.size)))
    register_engine(engine, rank_name(world.rank, config))
    return engine


@contextmanager
def _store(world: World, config: RankConfig) -> Iterator[Store]:
    if world.size == 1 or world.port is None:
        yield OwnStore()
        return
    participant = Participant(
        rank=world.rank,
        size=world.size,
        label=rank_name(world.rank, config),
        job=config.job_name,
        attempt=config.attempt,
    )
    first = world.rank == 0
    rendezvous = RendezvousConfig(
        participant=participant,
        host=world.host,
        port=world.port,
        timeout_seconds=config.start_timeout_seconds,
        secret=read_secret(config.secret_file, config.secret),
        listening_address=listening_address(world.host, own_address(config)) if first else "",
    )
    with open_store(rendezvous) as store:
        yield store
