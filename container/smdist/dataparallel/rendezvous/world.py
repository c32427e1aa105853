# SPDX-License-Identifier: Apache-2.0
"""Rank and size of this process in its job, from the environment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from sagemaker_dist.errors import OptionError, raise_all
from smdist.config import RankConfig

_LAST_PORT: Final = 65535
_HINT = "Start the ranks with distribution= or torchrun, or unset these variables to run alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Position of this process among the ranks of its job; the defaults describe a single process.

    Attributes:
        local_rank: This rank's number on its host, of `local_size`.
        port: Port of rank 0: MASTER_PORT, or the next one if torchrun itself listens at
            MASTER_PORT. None for a single process.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    host: str = "127.0.0.1"
    port: int | None = None


def world_of(config: RankConfig) -> World:
    """Return the world that RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_* describe.

    MASTER_ADDR and MASTER_PORT alone make no rank: without the numbers this is a single process.

    Raises:
        OptionError: Some variables are missing, or they contradict each other.
    """
    numbers = {
        "RANK": config.rank,
        "WORLD_SIZE": config.size,
        "LOCAL_RANK": config.local_rank,
        "LOCAL_WORLD_SIZE": config.local_size,
    }
    given = [name for name, value in numbers.items() if value is not None]
    if not given:
        return World()
    _check_complete(numbers, config)
    assert config.rank is not None
    assert config.size is not None
    assert config.local_rank is not None
    assert config.local_size is not None
    world = World(
        rank=config.rank,
        size=config.size,
        local_rank=config.local_rank,
        local_size=config.local_size,
        host=config.master_address,
        port=config.master_port,
    )
    raise_all(_contradictions(world))
    return replace(world, port=_next_to(config.master_port)) if config.is_port_taken else world


def _next_to(port: int | None) -> int | None:
    """Return the next port, the same on every rank; the last port gives the one before it."""
    return None if port is None else port + 1 if port < _LAST_PORT else port - 1


def _check_complete(numbers: dict[str, int | None], config: RankConfig) -> None:
    place = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in config.world_variables]
    given = [name for name, value in numbers.items() if value is not None]
    missing = [name for name, value in numbers.items() if value is None] + place
    if missing:
        raise OptionError(
            f"the environment has {', '.join(given)} and not {', '.join(missing)}",
            "ranks of a job need all of them to meet",
            _HINT,
        )


def _contradictions(world: World) -> Iterator[OptionError]:
    above_none = "ranks count from 0"
    within = "a host has no more ranks than the job, and numbers them in the same order"
    rank, size = f"RANK is {world.rank}", f"WORLD_SIZE is {world.size}"
    local = f"LOCAL_RANK is {world.local_rank}"
    local_size = f"LOCAL_WORLD_SIZE is {world.local_size}"
    if world.rank >= world.size:
        yield _contradiction(f"{rank} and {size}", above_none)
    if world.local_rank >= world.local_size:
        yield _contradiction(f"{local} and {local_size}", above_none)
    if world.local_size > world.size:
        yield _contradiction(f"{local_size} and {size}", within)
    if world.local_rank > world.rank:
        yield _contradiction(f"{local} and {rank}", within)
    if world.port is not None and not 0 < world.port <= _LAST_PORT:
        yield _contradiction(f"MASTER_PORT is {world.port}", "ports are 1 to 65535")


def _contradiction(what: str, why: str) -> OptionError:
    return OptionError(f"in the environment, {what}", why, _HINT)
