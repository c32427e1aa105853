# SPDX-License-Identifier: Apache-2.0
"""Connection of all ranks through a store that every rank can reach.

Rank 0 creates the session id, and the secret unless a file provides it. Every rank
publishes its name and its engine's address; then the engines connect when first used.
A generation counter keeps the keys of a second engine on the same store apart from
those of the first.
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
from smdist.dataparallel.rendezvous.autotune import check_agreement, fixed_by, tune
from smdist.dataparallel.rendezvous.engine_interface import E, Engine, EngineModule
from smdist.dataparallel.rendezvous.host_identity import (
    host_identity,
    machine_identity,
    numbered,
    pause_microseconds,
)
from smdist.dataparallel.rendezvous.secret import read_secret
from smdist.dataparallel.rendezvous.store import Store

_SESSION_BYTES = 16
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class _Board:
    """One rank's view of one generation of the store."""

    store: Store
    prefix: str
    rank: int
    size: int
    patience_seconds: float

    def say(self, what: str, word: bytes) -> None:
        self.store.set(f"{self.prefix}/{what}", word)

    def hear(self, what: str, ranks: Sequence[int]) -> list[bytes]:
        """Return the values that these ranks have published.

        Raises:
            LaunchError: A rank has not published its value in time.
        """
        return self._words(what, ranks, self.patience_seconds)

    def exchange(self, what: str, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """All-gather one dict per rank through the store, in the order of ranks.

        Rank 0 collects the values, so each rank makes two requests to the store instead of one
        for every other rank.
        """
        self.say(f"{what}/{self.rank}", json.dumps(mine).encode())
        if self.rank == 0:
            words = self.hear(what, range(self.size))
            self.say(f"{what}/all", b"[" + b",".join(words) + b"]")
            return [json.loads(word) for word in words]
        try:
            collected = self.store.get(f"{self.prefix}/{what}/all", self.patience_seconds)
        except TimeoutError:
            self._words(what, range(self.size), 0)  # raises with the missing ranks' names
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
    """Create this rank's engine and connect it to the engines of all other ranks.

    Raises:
        LaunchError: A rank did not arrive within the start timeout, or could not start.
        SkewError: Ranks run different releases of the runtime.
        OptionError: Ranks have different options.
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
    """Report to all ranks in connect() that this rank cannot start, so that they stop waiting."""
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
    """Return the name of this rank in the messages of other ranks."""
    return f"rank {rank} on {config.host_label}"


def _board(store: Store, rank: int, size: int, patience_seconds: float) -> _Board:
    generation = store.add(f"smdist/generation/{rank}", 1)
    return _Board(store, f"smdist/{generation}", rank, size, patience_seconds)


def _options(config: RankConfig) -> dict[str, Any]:
    """Return the options that must be the same on all ranks."""
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
    """Refuse a mix of loopback and other addresses: a loopback address reaches one machine only."""
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
    """Raise LaunchError for a rank that has declined to start."""
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
