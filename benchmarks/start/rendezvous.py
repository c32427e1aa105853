# SPDX-License-Identifier: Apache-2.0
"""Count of the requests and bytes that ranks exchange in the store before engines connect."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from smdist.config import RankConfig
from smdist.dataparallel.rendezvous.connect import connect
from smdist.dataparallel.rendezvous.engine_interface import EngineModule

_TIMEOUT = 60


@dataclass
class _Values:
    """Values of a store, on which several threads wait."""

    by_key: dict[str, bytes] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)


class _CountingStore:
    """Store as one rank sees it, which counts the rank's requests and the bytes it receives."""

    def __init__(self, values: _Values) -> None:
        self.values = values
        self.requests = 0
        self.received = 0

    def set(self, key: str, value: bytes) -> None:
        self.requests += 1
        with self.values.changed:
            self.values.by_key[key] = value
            self.values.changed.notify_all()

    def get(self, key: str, timeout_seconds: float) -> bytes:
        self.requests += 1
        with self.values.changed:
            if not self.values.changed.wait_for(lambda: key in self.values.by_key, timeout_seconds):
                raise TimeoutError(key)
            value = self.values.by_key[key]
        self.received += len(value)
        return value

    def delete(self, _: str) -> None:
        self.requests += 1

    def add(self, _: str, count: int) -> int:
        self.requests += 1
        return count


class _PublishingStore(_CountingStore):
    """Store of a rank of which only what it publishes counts: it believes to be alone."""

    def set(self, key: str, value: bytes) -> None:
        super().set(key, value)
        self.last = value

    def get(self, key: str, _: float) -> bytes:
        return b"[" + self.last + b"]" if key.endswith("/all") else bytes(48)


class _Engine:
    """Engine that says where it listens, and does nothing else."""

    def __init__(self, rank: int, *_: Any, **__: Any) -> None:
        self.rank = rank

    def endpoint(self) -> tuple[str, int, str]:
        host = f"10.0.{self.rank // 256}.{self.rank % 256}"
        return host, 30_000 + self.rank, f"smdist-{self.rank:016x}"

    def join(self, peers: list[tuple[str, int, str]]) -> None:
        pass

    def probe(self, *_: Any) -> SimpleNamespace:
        return SimpleNamespace(seconds=0)


@dataclass(frozen=True)
class Traffic:
    """Requests to the store and bytes from it, of rank 0 and of each other rank."""

    requests_of_rank_0: int
    bytes_to_rank_0: int
    requests_of_others: int
    bytes_to_others: int


@patch("smdist.dataparallel.rendezvous.connect.start_history", lambda *_: None)
def simulate(size: int) -> Traffic:
    """Let `size` ranks meet; rank 0 and the last rank do so in full."""
    values = _Values()
    for rank in range(1, size - 1):
        _meet(rank, size, _PublishingStore(values))
    stores = [_CountingStore(values), _CountingStore(values)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_meet, (0, size - 1), (size, size), stores))
    first, other = stores
    return Traffic(first.requests, first.received, other.requests, other.received)


def _meet(rank: int, size: int, store: _CountingStore) -> None:
    config = RankConfig(host_label=f"algo-{rank // 8 + 1}", start_timeout_seconds=_TIMEOUT)
    module = SimpleNamespace(Engine=_Engine, Fixed=SimpleNamespace)
    connect(store, rank, size, config, cast("EngineModule[Any]", module))
