# SPDX-License-Identifier: Apache-2.0
"""What the compiled part of each framework gives of the engine: one face, several binaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar


class Tuning(Protocol):
    """How the engine divides its work."""

    @property
    def lanes(self) -> int:
        """Connections to each other rank."""

    @property
    def chunk_bytes(self) -> int:
        """What one message carries."""

    @property
    def one_shot_bytes(self) -> int:
        """Up to here all ranks send all of it at once."""

    @property
    def single_owner_bytes(self) -> int:
        """Up to here one rank sums all of it."""

    @property
    def arriving_bytes(self) -> int:
        """What may be on its way to a rank; 0: no limit."""


class Findings(Protocol):
    """What the probe of a job has found: seconds, and bytes per second."""

    @property
    def tuning(self) -> Tuning:
        """What is used from now on."""

    @property
    def seconds(self) -> float:
        """How long the probe took; 0: nothing was measured."""

    @property
    def latency(self) -> float:
        """Seconds there and back."""

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""


class Engine(Protocol):
    """One process's end of all collectives."""

    def endpoint(self) -> tuple[str, int, str]:
        """Host, port and local socket at which it listens."""

    def join(self, peers: list[tuple[str, int, str]], /) -> None:
        """Tell it where all ranks listen."""

    def probe(
        self, rank: int, hosts: list[int], fixed: Any, patience_seconds: float, /
    ) -> Findings:
        """Measure what `fixed` leaves open."""

    def add_group(self, group: int, members: list[int], /) -> None:
        """Number a communicator of these ranks."""

    def abort(self, reason: str, /) -> None:
        """Fail everything, on all ranks."""

    def is_running(self) -> bool:
        """Whether it was neither shut down nor aborted."""

    def close_in_child(self) -> None:
        """Close a forked child's copies of its connections."""

    def shutdown(self) -> None:
        """Say goodbye to the other ranks."""


E = TypeVar("E", bound=Engine)
E_co = TypeVar("E_co", bound=Engine, covariant=True)


class EngineModule(Protocol[E_co]):
    """A compiled module with the engine in it."""

    @property
    def Engine(self) -> Callable[..., E_co]:  # noqa: N802  as the module spells its class
        """Make one end."""

    @property
    def Fixed(self) -> Callable[[], Any]:  # noqa: N802  idem
        """Make the settings that are not to be measured."""
