# SPDX-License-Identifier: Apache-2.0
"""Rank of this process and number of ranks of its job, from the environment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.config import RankConfig

_LAST_PORT: Final = 65535
_HINT = (
    "Start the ranks with distribution= or torchrun, or unset these variables to run a single"
    " process"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Numbers of this rank and address of rank 0; the defaults describe a single process.

    Attributes:
        rank: This rank's number, from 0.
        size: Number of ranks of the job.
        local_rank: This rank's number on its host, from 0.
        local_size: Number of ranks on its host.
        host: Address of rank 0's host.
        port: Port of rank 0's store server: MASTER_PORT, or the next one if torchrun itself
            listens at MASTER_PORT; None for a single process.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    host: str = "127.0.0.1"
    port: int | None = None

    @property
    def is_even(self) -> bool:
        """True if all hosts have as many ranks as this one, as far as this rank knows."""
        return self.size % self.local_size == 0

    def require_even(self, function: str) -> World:
        """Return this world, for a function that numbers hosts.

        Args:
            function: Name of the function, for the error.

        Raises:
            OptionError: Hosts have different numbers of ranks.
        """
        require(
            self.is_even,
            what=f"{function}() was called with {self.local_size} of {self.size} ranks on this"
            " host",
            why="hosts have different numbers of ranks, and are not numbered",
            hint="Use rank() and local_rank()",
            about=function,
            kind="uneven",
        )
        return self


def world_of(config: RankConfig) -> World:
    """Return this process's world from RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_*.

    If none of the four numbers is set, this is a single process, even with MASTER_ADDR and
    MASTER_PORT.

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
    """Return port + 1, or port - 1 if `port` is 65535, the last port; return None for None."""
    return None if port is None else port + 1 if port < _LAST_PORT else port - 1


def _check_complete(numbers: dict[str, int | None], config: RankConfig) -> None:
    place = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in config.world_variables]
    given = [name for name, value in numbers.items() if value is not None]
    missing = [name for name, value in numbers.items() if value is None] + place
    if missing:
        raise OptionError(
            f"the environment has {', '.join(given)} but not {', '.join(missing)}",
            "ranks need all of these variables to connect",
            _HINT,
            about=missing[0],
            kind="missing",
        )


def _contradictions(world: World) -> Iterator[OptionError]:
    from_zero = "ranks are numbered from 0"
    within = "a host has at most as many ranks as the job, numbered in the same order"
    rank, size = f"RANK is {world.rank}", f"WORLD_SIZE is {world.size}"
    local = f"LOCAL_RANK is {world.local_rank}"
    local_size = f"LOCAL_WORLD_SIZE is {world.local_size}"
    if world.rank >= world.size:
        yield _contradiction(f"{rank} and {size}", from_zero, "RANK")
    if world.local_rank >= world.local_size:
        yield _contradiction(f"{local} and {local_size}", from_zero, "LOCAL_RANK")
    if world.local_size > world.size:
        yield _contradiction(f"{local_size} and {size}", within, "LOCAL_WORLD_SIZE")
    if world.local_rank > world.rank:
        yield _contradiction(f"{local} and {rank}", within, "LOCAL_RANK")
    if world.port is not None and not 0 < world.port <= _LAST_PORT:
        why = "a port is a number from 1 to 65535"
        yield _contradiction(f"MASTER_PORT is {world.port}", why, "MASTER_PORT", "option")


def _contradiction(what: str, why: str, variable: str, kind: str = "conflict") -> OptionError:
    return OptionError(f"in the environment, {what}", why, _HINT, variable, kind)
