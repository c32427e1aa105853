# SPDX-License-Identifier: Apache-2.0
"""How ranks find and trust each other, through a store that all of them see.

Rank 0 makes the session, and the secret unless a file gives it. Every rank
says what it is called and where its engine listens; then all connect lazily.
A generation counter keeps a second engine on the same store apart from the
first one's addresses.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Any

import smdist
from sagemaker_dist.errors import LaunchError, OptionError, SkewError
from smdist.config import RankConfig
from smdist.dataparallel.rendezvous.address import own_address
from smdist.dataparallel.rendezvous.engine import E, Engine, EngineModule
from smdist.dataparallel.rendezvous.host import (
    host_identity,
    machine_identity,
    numbered,
    pause_microseconds,
)
from smdist.dataparallel.rendezvous.secret import read_secret
from smdist.dataparallel.rendezvous.store import Store
from smdist.dataparallel.rendezvous.tune import check_agreement, fixed_by, tune

_SESSION_BYTES = 16
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class _Board:
    """One rank's part in one generation of the store."""

    store: Store
    prefix: str
    rank: int
    size: int
    patience_seconds: float

    def say(self, what: str, word: bytes) -> None:
        self.store.set(f"{self.prefix}/{what}", word)

    def hear(self, what: str, ranks: Sequence[int]) -> list[bytes]:
        """The words of these ranks.

        Raises:
            LaunchError: Some were not said in time.
        """
        return self._words(what, ranks, self.patience_seconds)

    def exchange(self, what: str, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Every rank says something; every rank hears all, in rank order.

        Rank 0 collects: the store is asked twice by each rank, not once for each pair.
        """
        self.say(f"{what}/{self.rank}", json.dumps(mine).encode())
        if self.rank == 0:
            words = self.hear(what, range(self.size))
            self.say(f"{what}/all", b"[" + b",".join(words) + b"]")
            return [json.loads(word) for word in words]
        try:
            collected = self.store.get(f"{self.prefix}/{what}/all", self.patience_seconds)
        except TimeoutError:
            self._words(what, range(self.size), 0)  # names who is missing
            raise _absent([0], self.patience_seconds) from None
        everything: list[dict[str, Any]] = json.loads(collected)
        return everything

    def _words(self, what: str, ranks: Sequence[int], seconds: float) -> list[bytes]:
        end = time.monotonic() + seconds
        words, missing = [], []
        for rank in ranks:
            try:
                left = max(end - time.monotonic(), 0)
                words.append(self.store.get(f"{self.prefix}/{what}/{rank}", left))
            except TimeoutError:
                missing.append(rank)
        if missing:
            raise _absent(missing, self.patience_seconds)
        return words


def connect(store: Store, rank: int, size: int, config: RankConfig, module: EngineModule[E]) -> E:
    """Make this rank's engine and tell it where all others listen.

    Raises:
        LaunchError: A rank did not come within the start timeout, or could not.
        SkewError: Ranks run different releases of the runtime.
        OptionError: They were given different options.
    """
    board = _board(store, rank, size, config.start_timeout_seconds)
    session, secret = _session_and_secret(board, config)
    me = {
        "label": name_of(rank, config),
        "version": smdist.__version__,
        "host": host_identity(config),
        "machine": machine_identity(),
        "options": _options(config),
    }
    others = board.exchange("who", me)
    _check_presence(others)
    _check_releases(others)
    names = [other["label"] for other in others]
    check_agreement([other["options"] for other in others], names)
    hosts = numbered([other["host"] for other in others])
    neighbours = sum(other["machine"] == me["machine"] for other in others)
    pause = pause_microseconds(neighbours)
    arriving = config.tuning.arriving_bytes
    engine = module.Engine(
        rank, size, own_address(config), names, hosts, secret, session, pause, arriving
    )
    _join(board, engine, names)
    fixed = fixed_by(config.tuning, hosts, module)
    tune(engine, rank, hosts, fixed, config.start_timeout_seconds)
    return engine


def decline(store: Store, rank: int, size: int, error: OptionError) -> None:
    """Tell all who `connect` that this rank cannot: they need not wait for it."""
    board = _board(store, rank, size, 0)
    faults = getattr(error, "faults", (error,))
    word = {
        "label": f"rank {rank} on {socket.gethostname()}",
        "faults": [fault.what for fault in faults],
    }
    board.say(f"who/{rank}", json.dumps(word).encode())
    if rank == 0:
        board.say("session/0", bytes(_SESSION_BYTES + _SECRET_BYTES))
        board.say("who/all", json.dumps([word]).encode())


def name_of(rank: int, config: RankConfig) -> str:
    """What messages on other ranks call this one."""
    return f"rank {rank} on {config.host_label}"


def _board(store: Store, rank: int, size: int, patience_seconds: float) -> _Board:
    generation = store.add(f"smdist/generation/{rank}", 1)
    return _Board(store, f"smdist/{generation}", rank, size, patience_seconds)


def _options(config: RankConfig) -> dict[str, Any]:
    """What all ranks have to be given alike."""
    alike = {"fusion_bytes": config.fusion_bytes, "timeout_seconds": config.timeout_seconds}
    return asdict(config.tuning) | alike


def _join(board: _Board, engine: Engine, names: list[str]) -> None:
    host, port, local = engine.endpoint()
    places = board.exchange("where", {"host": host, "port": port, "local": local})
    _check_places([each["host"] for each in places], names)
    engine.join([(each["host"], each["port"], each["local"]) for each in places])


def _session_and_secret(board: _Board, config: RankConfig) -> tuple[bytes, bytes]:
    if board.rank == 0:
        board.say("session/0", secrets.token_bytes(_SESSION_BYTES + _SECRET_BYTES))
    (shared,) = board.hear("session", [0])
    given = read_secret(config.secret_file) if config.secret_file else shared[_SESSION_BYTES:]
    return shared[:_SESSION_BYTES], given


def _absent(missing: list[int], patience_seconds: float) -> LaunchError:
    names = ", ".join(f"rank {rank}" for rank in missing)
    have = "has" if len(missing) == 1 else "have"
    return LaunchError(
        f"{names} {have} not come within {patience_seconds:g} s",
        "every rank announces itself in the store before training starts",
        "Look for the ranks that never started in the hosts' logs,"
        " or give a longer start_timeout_seconds",
    )


def _check_places(hosts: list[str], names: list[str]) -> None:
    """Loopback addresses reach one machine only; mixed with others they are a mistake."""
    local = [name for host, name in zip(hosts, names, strict=True) if _is_loopback(host)]
    if 0 < len(local) < len(hosts):
        raise LaunchError(
            f"{local[0]} listens at a loopback address",
            "other ranks of the job are on other machines and cannot reach it;"
            " its own host name may stand for 127.0.1.1 in /etc/hosts",
            "Name the network interface of each host in SMDIST_INTERFACE",
        )


def _is_loopback(host: str) -> bool:
    return ip_address(host).is_loopback


def _check_presence(others: list[dict[str, Any]]) -> None:
    """Whoever declined has ended."""
    for other in others:
        if faults := other.get("faults"):
            raise LaunchError(
                f"{other['label']} could not start",
                "; ".join(faults),
                "Correct that there; all ranks start, or none",
            )


def _check_releases(others: list[dict[str, Any]]) -> None:
    releases = {other["version"]: other["label"] for other in reversed(others)}
    if len(releases) > 1:
        (one, there), (other, elsewhere), *_ = releases.items()
        raise SkewError(
            f"{there} runs sagemaker-dist-runtime {one} and {elsewhere} runs {other}",
            "all ranks of a job speak one protocol",
            "Use the same image on every host",
        )
