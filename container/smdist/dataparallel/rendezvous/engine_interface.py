# SPDX-License-Identifier: Apache-2.0
"""Interface of the compiled engine, equal in the modules for torch and for TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFault:
    """Reason why an engine failed, the same on all ranks.

    Attributes:
        kind: "aborted" (a rank called abort), "usage" (a wrong call), "peer" (a rank broke the
            protocol), "timeout", "system" (a system call failed), "left" (a rank shut down
            in order, too early) or "lost" (a rank ended, or cannot be reached).
        culprit: The rank that caused the fault.
        operation: The collective that failed, such as "all_reduce"; empty if there is none.
        text: A sentence for people.
        details: The argument `details` of `abort`; empty for other kinds.
    """

    kind: str
    culprit: int
    operation: str
    text: str
    details: str


class Tuning(Protocol):
    """Settings of the engine: how it divides an operation into messages and shards."""

    @property
    def lanes(self) -> int:
        """Number of TCP connections to each other rank."""

    @property
    def chunk_bytes(self) -> int:
        """Maximum payload of one message, in bytes."""

    @property
    def one_shot_bytes(self) -> int:
        """Size in bytes up to which each rank of an all-reduce sends its whole tensor to all."""

    @property
    def single_owner_bytes(self) -> int:
        """Size in bytes up to which a single rank sums the whole tensor of an all-reduce."""

    @property
    def arriving_bytes(self) -> int:
        """Maximum number of bytes in flight to one host; 0 for no limit."""


class Findings(Protocol):
    """Results of the engine's measurement at the start of a job."""

    @property
    def tuning(self) -> Tuning:
        """Settings that the engine has chosen and now uses."""

    @property
    def seconds(self) -> float:
        """Duration of the measurement in seconds; 0 if nothing was measured."""

    @property
    def latency(self) -> float:
        """Measured network latency in seconds."""

    @property
    def bandwidth(self) -> float:
        """Measured network bandwidth in bytes per second."""


class Engine(Protocol):
    """Compiled engine of one process, which runs the collectives of all its groups."""

    def endpoint(self) -> tuple[str, int, str]:
        """Return where this engine listens: IP address, TCP port, name of its Unix socket.

        Ranks on the same host connect to the Unix socket, too. Its name is empty if there is none.
        """

    def join(self, peers: list[tuple[str, int, str]], /) -> None:
        """Set the endpoints of all ranks; `peers[r]` is what `endpoint` returns on rank r."""

    def probe(self, rank: int, hosts: list[int], fixed: Any, timeout_seconds: float, /) -> Findings:
        """Measure the settings that are None in `fixed`; all ranks must call it together.

        `fixed` is an object of the class `EngineModule.Fixed`, `rank` is this rank's number, and
        `hosts` has the host number of each rank.
        """

    def add_group(self, group: int, members: list[int], /) -> None:
        """Create a communicator of the ranks `members`, with the number `group`."""

    def abort(self, reason: str, details: str = "", /) -> None:
        """Fail all current and later operations on all ranks, which receive both texts.

        `reason` is a sentence for error messages, `details` a text for programs.
        """

    def fault(self) -> tuple[str, int, str, str, str] | None:
        """Return (kind, culprit, operation, text, details) of the engine's fault.

        None if it has not failed. `EngineFault` describes the fields.
        """

    def is_running(self) -> bool:
        """Return True until the engine is shut down or aborted."""

    def close_in_child(self) -> None:
        """Close this engine's connections in a forked child, which inherited them."""

    def shutdown(self) -> None:
        """Tell the other ranks that this rank has finished, close the connections and stop."""


E = TypeVar("E", bound=Engine)
E_co = TypeVar("E_co", bound=Engine, covariant=True)


class EngineModule(Protocol[E_co]):
    """Compiled module of a framework, which contains the engine."""

    @property
    def Engine(self) -> Callable[..., E_co]:  # noqa: N802  the name of the module's class
        """Class of the engine."""

    @property
    def Fixed(self) -> Callable[[], Any]:  # noqa: N802  the name of the module's class
        """Class of the settings that must not be measured."""
