# SPDX-License-Identifier: Apache-2.0
"""Interface of the compiled engine, the same in the binary of every framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFault:
    """Why an engine ended: the same on all ranks.

    Attributes:
        kind: "aborted", "usage", "peer" (broke the protocol), "timeout", "system", "left" (shut
            down in order, too early) or "lost" (ended, or cannot be reached).
        culprit: Rank of the engine that the fault is about.
        operation: Such as "all_reduce"; empty for a fault of no operation.
        text: A sentence for people.
        details: What `abort` was given beside its sentence.
    """

    kind: str
    culprit: int
    operation: str
    text: str
    details: str


class Tuning(Protocol):
    """Settings for how the engine divides its work."""

    @property
    def lanes(self) -> int:
        """Number of connections to each other rank."""

    @property
    def chunk_bytes(self) -> int:
        """Payload of one message, in bytes."""

    @property
    def one_shot_bytes(self) -> int:
        """Largest all-reduce, in bytes, in which every rank sends its whole tensor in one step."""

    @property
    def single_owner_bytes(self) -> int:
        """Largest all-reduce, in bytes, that a single rank sums."""

    @property
    def arriving_bytes(self) -> int:
        """Maximum number of bytes in flight to one rank; 0 is no limit."""


class Findings(Protocol):
    """Results of the engine's probe."""

    @property
    def tuning(self) -> Tuning:
        """Settings that the engine uses from now on."""

    @property
    def seconds(self) -> float:
        """Duration of the probe in seconds; 0 if nothing was measured."""

    @property
    def latency(self) -> float:
        """Round-trip time in seconds."""

    @property
    def bandwidth(self) -> float:
        """Bandwidth in bytes per second."""


class Engine(Protocol):
    """Engine of one process, which runs all its collectives."""

    def endpoint(self) -> tuple[str, int, str]:
        """Return the host, the TCP port and the local socket at which this engine listens."""

    def join(self, peers: list[tuple[str, int, str]], /) -> None:
        """Set the endpoints of all ranks."""

    def probe(
        self, rank: int, hosts: list[int], fixed: Any, patience_seconds: float, /
    ) -> Findings:
        """Measure the settings that `fixed` leaves open."""

    def add_group(self, group: int, members: list[int], /) -> None:
        """Create a communicator of these ranks under the number `group`."""

    def abort(self, reason: str, details: str = "", /) -> None:
        """Fail everything, on all ranks; `details` travel beside the reason."""

    def fault(self) -> tuple[str, int, str, str, str] | None:
        """Return kind, culprit, operation, text and details of what ended it, if anything did."""

    def is_running(self) -> bool:
        """Return whether the engine was neither shut down nor aborted."""

    def close_in_child(self) -> None:
        """Close the connections that a forked child inherited."""

    def shutdown(self) -> None:
        """Leave the other ranks in an orderly way and stop."""


E = TypeVar("E", bound=Engine)
E_co = TypeVar("E_co", bound=Engine, covariant=True)


class EngineModule(Protocol[E_co]):
    """Compiled module that contains the engine."""

    @property
    def Engine(self) -> Callable[..., E_co]:  # noqa: N802  as the module spells its class
        """Constructor of an engine."""

    @property
    def Fixed(self) -> Callable[[], Any]:  # noqa: N802  idem
        """Constructor of the settings that must not be measured."""
