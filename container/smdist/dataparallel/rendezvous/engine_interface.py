# SPDX-License-Identifier: Apache-2.0
"""Interface of the compiled engine, which runs the collectives.

The engine is compiled twice, as a module for torch and as a module for TensorFlow. Both modules
have this interface.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

FaultFields = tuple[str, int, str, str, str]  # kind, culprit, operation, text, details


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFault:
    """Reason why an engine, or the last operation, failed.

    It is the same on all ranks, but ranks that disagree about a call may name different pairs.

    Attributes:
        kind: "aborted" (a rank called abort), "usage" (ranks called different collectives, or
            with different arguments), "peer" (a rank broke the protocol), "timeout", "system" (a
            system call failed), "left" (a rank shut its engine down while an operation of other
            ranks still needed it) or "lost" (a rank's process ended, or cannot be reached).
        culprit: The rank that caused the fault.
        operation: The collective that failed, such as "all_reduce"; empty if there is none.
        text: A sentence for people.
        details: If `kind` is "aborted", the text `details` that the rank passed to abort(). If it
            is "timeout", a JSON list: see `late_ranks`. Otherwise empty.
    """

    kind: str
    culprit: int
    operation: str
    text: str
    details: str

    @classmethod
    def of(cls, fields: FaultFields | None) -> EngineFault | None:
        """Return the fault with the fields that a compiled module returns; None for None."""
        if fields is None:
            return None
        kind, culprit, operation, text, details = fields
        return cls(kind=kind, culprit=culprit, operation=operation, text=text, details=details)

    @property
    def late_ranks(self) -> list[dict[str, Any]]:
        """Return the ranks that did not come to an operation before its timeout, at most 16.

        Each is a dict with the keys "rank", "has_come" (True: it has called the operation, but its
        data have not arrived) and "last_operation": None, or a dict with "kind", "dtype", "bytes",
        "group", "sequence" and "seconds_ago". The list is empty for a fault of another kind.
        """
        if self.kind != "timeout" or not self.details:
            return []
        found: list[dict[str, Any]] = json.loads(self.details)
        return found


class Tuning(Protocol):
    """Settings of the engine: how it divides collectives and sends their data."""

    @property
    def lanes(self) -> int:
        """Number of TCP connections to each other rank."""

    @property
    def chunk_bytes(self) -> int:
        """Size in bytes of the chunks in which the engine reduces and sends a tensor."""

    @property
    def one_shot_bytes(self) -> int:
        """Largest size in bytes of a tensor that the engine reduces in one shot.

        In a one-shot all-reduce each rank sends its whole tensor to every other rank, and each rank
        reduces all tensors.
        """

    @property
    def single_owner_bytes(self) -> int:
        """Largest size in bytes of a tensor whose all-reduce a single rank computes.

        A tensor of at most `one_shot_bytes` is reduced in one shot instead. A tensor above both
        limits is divided into shards, and each rank reduces one shard.
        """

    @property
    def arriving_bytes(self) -> int:
        """Maximum number of bytes in flight from all other hosts to one host; 0 for no limit."""


class Findings(Protocol):
    """Settings that the engine has chosen at the start of a job, and the measured network speed."""

    @property
    def tuning(self) -> Tuning:
        """Settings that the engine has chosen and now uses."""

    @property
    def seconds(self) -> float:
        """Duration of the measurement in seconds; 0 if nothing was measured."""

    @property
    def latency(self) -> float:
        """Measured duration in seconds of an all-reduce of 8 bytes; 0 if not measured."""

    @property
    def bandwidth(self) -> float:
        """Measured bus bandwidth of large all-reduces, in bytes per second and host.

        If the job has only one host, the value is per rank. It is 0 if nothing was measured.
        """


class Engine(Protocol):
    """Compiled engine of one process, which runs the collectives of all process groups."""

    def endpoint(self) -> tuple[str, int, str]:
        """Return where this engine listens: IP address, TCP port, name of its Unix socket.

        Ranks on the same host use the Unix socket, other ranks the TCP port. The name is empty if
        the engine has no Unix socket; then all ranks use the TCP port.
        """

    def join(self, peers: list[tuple[str, int, str]], /) -> None:
        """Start the engine. It connects to another rank when an operation first needs that rank.

        `peers[r]` is the result of endpoint() on rank r.
        """

    def probe(self, rank: int, hosts: list[int], fixed: Any, timeout_seconds: float, /) -> Findings:
        """Choose the settings that are None in `fixed` by measurements, and use them from now on.

        All ranks must call this method together.

        Args:
            rank: This rank's number.
            hosts: Host number of each rank.
            fixed: Object of the class `EngineModule.Fixed` with the settings of the user.
            timeout_seconds: Seconds to wait for the other ranks.

        Returns:
            The chosen settings, and the measured latency and bandwidth.
        """

    def add_group(self, group: int, members: list[int], /) -> None:
        """Create a communicator of the ranks `members`, with the number `group`."""

    def abort(self, reason: str, details: str = "", /) -> None:
        """Fail all current and later operations on all ranks, which receive both texts.

        `reason` is a sentence for error messages, `details` a text for programs.
        """

    def fault(self) -> FaultFields | None:
        """Return (kind, culprit, operation, text, details) of the last operation's fault.

        Return that of the engine if it has failed since, and None if the last operation succeeded.
        `EngineFault` describes the fields.
        """

    def history(self, reason: str, /) -> str:
        """Return the last 1,000 operations as JSON: the content of operations-rank-N.json.

        `reason` is a word on why the caller needs it, which the text contains.
        """

    def is_running(self) -> bool:
        """Return True after join() and before shutdown(), also if the engine has failed."""

    def close_in_child(self) -> None:
        """Close this engine's connections in a forked child, which inherited them."""

    def shutdown(self) -> None:
        """Tell the other ranks that this rank has finished, close the connections and stop."""


E = TypeVar("E", bound=Engine)
E_co = TypeVar("E_co", bound=Engine, covariant=True)


class HistoryWriter(Protocol):
    """Thread that writes an engine's history to files when it is requested."""

    def install(self, signal: int, /) -> bool:
        """Write when this process receives the signal; False if it has a handler for it already."""

    def replace_handler(self) -> None:
        """Replace the handler of the signal, which writes stacks; call it if nothing else can."""

    def watch(self, engine: Any, /) -> None:
        """Write the history of this engine from now on."""

    def close_in_child(self) -> None:
        """Abandon the thread in a forked child, and restore the default of the signal there."""

    def stop(self) -> None:
        """Finish the files that are being written, and end the thread."""


class EngineModule(Protocol[E_co]):
    """Compiled Python module that contains the engine, for torch or for TensorFlow."""

    @property
    def HistoryWriter(self) -> Callable[[str, int, int, bool], HistoryWriter]:  # noqa: N802  a class
        """Class of the thread that writes an engine's history.

        Its arguments are the folder, the descriptor of the file with stacks, that of the socket
        over which it requests them, and whether to write when the engine fails.
        """

    @property
    def Engine(self) -> Callable[..., E_co]:  # noqa: N802  the name of the module's class
        """Class of the engine. An instance runs the collectives of one process."""

    @property
    def has_openssl(self) -> bool:
        """True if the module was built with OpenSSL, which encryption and "mac" need."""

    @property
    def Fixed(self) -> Callable[[], Any]:  # noqa: N802  the name of the module's class
        """Class for the settings that the user has chosen.

        The engine measures which value is best for each setting that is None.
        """
