# SPDX-License-Identifier: Apache-2.0
"""Connection of a rank to its host's launcher, which agrees with the others on a smaller world.

Each request and each reply is one line of JSON over a Unix socket that only this user can open.
"""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from smdist.elastic.elastic_error import BrokenGenerationError, ElasticError

_READ_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """World of the ranks that are left.

    Attributes:
        number: Number of the generation; the world of the job's start is generation 0.
        session: Random text, which is the same on all its ranks, and new in every generation.
        rank: Number of this rank in the new world.
        size: Number of ranks.
        local_rank: Number of this rank on its host, which never changes.
        local_size: Number of ranks on each host.
        hosts: Names of the hosts in the order of their ranks.
        lost: Hosts that were lost since the start of the job, each as a dict with "host", "why" and
            "is_certain".
    """

    number: int
    session: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    hosts: tuple[str, ...]
    lost: tuple[dict[str, Any], ...]


class AgentClient:
    """Connection of one rank to the agent in its host's launcher.

    Thread safety: all methods may be called from any thread; a request waits for the one before.

    Args:
        path: Path of the agent's Unix socket.
        local_rank: Number of this rank on its host.

    Raises:
        ElasticError: The launcher has ended.
    """

    def __init__(self, path: Path, local_rank: int) -> None:
        self._local_rank = local_rank
        self._lock = threading.Lock()
        self._received = bytearray()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise _launcher_lost(str(error)) from error
        self.request({"op": "hello"})

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def next_generation(self, generation: int, culprit: int | None) -> Generation:
        """Wait until the hosts that are left have agreed on a new generation, and return it.

        Args:
            generation: Number of the generation that has ended for this rank.
            culprit: The rank that was lost, by its number in that generation; None if unknown.

        Raises:
            ElasticError: Training cannot go on.
        """
        reply = self.request({"op": "reform", "generation": generation, "culprit": culprit})
        if reply["kind"] == "refused":
            fields = reply["error"]
            raise ElasticError(
                fields["what"],
                fields["why"],
                fields["hint"],
                about=fields["about"],
                kind=fields["kind"],
                lost=tuple(fields["lost"]),
            )
        local_size = reply["local_size"]
        return Generation(
            number=reply["generation"],
            session=reply["session"],
            rank=reply["position"] * local_size + self._local_rank,
            size=len(reply["hosts"]) * local_size,
            local_rank=self._local_rank,
            local_size=local_size,
            hosts=tuple(reply["hosts"]),
            lost=tuple(reply["lost"]),
        )

    def request(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the reply.

        Raises:
            ElasticError: The launcher has ended.
        """
        line = json.dumps({**fields, "local_rank": self._local_rank}).encode() + b"\n"
        with self._lock:
            try:
                self._socket.sendall(line)
                while b"\n" not in self._received:
                    part = self._socket.recv(_READ_BYTES)
                    if not part:
                        raise ConnectionResetError("the connection was closed")
                    self._received += part
            except OSError as error:
                raise _launcher_lost(str(error)) from error
            reply, _, rest = self._received.partition(b"\n")
            self._received = bytearray(rest)
        content: dict[str, Any] = json.loads(reply)
        return content


class ElasticStore:
    """Key-value store of one generation, in the launcher of its first host.

    It has the interface of `rendezvous.store.Store`. Every method raises BrokenGenerationError as
    soon as a host of the generation is lost.

    Args:
        client: Connection to this host's launcher.
        generation: The generation. Its random session id begins all keys.
    """

    def __init__(self, client: AgentClient, generation: Generation) -> None:
        self._client = client
        self._generation = generation

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key and wake the ranks that wait for it."""
        self._request("set", key, value=value.decode("latin-1"))

    def get(self, key: str, timeout_seconds: float) -> bytes:
        """Wait until a rank has set the key, and return its value.

        Raises:
            TimeoutError: No rank has set the key within `timeout_seconds`.
        """
        value = self._request("get", key, seconds=timeout_seconds)
        if value is None:
            raise TimeoutError(f"no rank has set the key {key!r} within {timeout_seconds:g} s")
        return value.encode("latin-1")

    def add(self, key: str, count: int) -> int:
        """Add `count` to the counter under this key, which starts at 0; return the new value."""
        return int(self._request("add", key, count=count) or 0)

    def delete(self, key: str) -> None:
        """Remove the value of a key, so that no process can read it any more."""
        self._request("delete", key)

    def has(self, key: str) -> bool:
        """Return True if a rank has set the key."""
        return bool(self._request("has", key))

    def _request(self, op: str, key: str, **fields: Any) -> str | None:
        """Send a request; return the value of the reply, or None if the time was over."""
        own = {"generation": self._generation.number, "key": f"{self._generation.session}/{key}"}
        reply = self._client.request({"op": op, **own, **fields})
        if reply["kind"] == "value":
            return str(reply["value"])
        if reply["kind"] == "timed_out":
            return None
        raise BrokenGenerationError(f"a host of generation {self._generation.number} was lost")


def _launcher_lost(why: str) -> ElasticError:
    return ElasticError(
        "the launcher of this host does not answer its rank",
        why,
        "Read the log of this host for the reason why its launcher has ended",
        kind="launcher_lost",
    )
