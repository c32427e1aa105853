# SPDX-License-Identifier: Apache-2.0
"""How ranks find and trust each other, through torch's store.

Rank 0 makes the session, and the secret unless a file gives it. Every rank
says what it is called and where its engine listens; then all connect lazily.
A generation counter keeps a second engine on the same store apart from the
first one's addresses.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store

import smdist
from sagemaker_dist.errors import LaunchError, SkewError
from smdist.config import RankConfig
from smdist.dataparallel.torch import _C
from smdist.dataparallel.torch.address import own_address
from smdist.dataparallel.torch.host import (
    host_identity,
    machine_identity,
    numbered,
    pause_microseconds,
)
from smdist.dataparallel.torch.tune import check_agreement, tune

_SESSION_BYTES = 16
_SECRET_BYTES = 32


def connect(store: Store, rank: int, size: int, config: RankConfig) -> _C.Engine:
    """Make this rank's engine and tell it where all others listen.

    Raises:
        LaunchError: A rank did not come within the start timeout.
        SkewError: Ranks run different releases of the runtime.
    """
    generation = store.add(f"smdist/generation/{rank}", 1)
    store = PrefixStore(f"smdist/{generation}", store)
    patience = timedelta(seconds=config.start_timeout_seconds)
    session, secret = _session_and_secret(store, rank, config, patience)
    me = {
        "label": name_of(rank, config),
        "version": smdist.__version__,
        "host": host_identity(config),
        "machine": machine_identity(),
        "tuning": asdict(config.tuning),
    }
    others = _exchange(store, "who", rank, size, me, patience)
    _check_releases(others)
    names = [other["label"] for other in others]
    check_agreement([other["tuning"] for other in others], names)
    hosts = numbered([other["host"] for other in others])
    neighbours = sum(other["machine"] == me["machine"] for other in others)
    pause = pause_microseconds(neighbours)
    arriving = config.tuning.arriving_bytes
    engine = _C.Engine(
        rank, size, own_address(config), names, hosts, secret, session, pause, arriving
    )
    host, port, local = engine.endpoint()
    place = {"host": host, "port": port, "local": local}
    places = _exchange(store, "where", rank, size, place, patience)
    _check_places([each["host"] for each in places], names)
    engine.join([(each["host"], each["port"], each["local"]) for each in places])
    tune(engine, rank, hosts, config.tuning, config.start_timeout_seconds)
    return engine


def name_of(rank: int, config: RankConfig) -> str:
    """What messages on other ranks call this one."""
    return f"rank {rank} on {config.host_label}"


def _session_and_secret(
    store: Store, rank: int, config: RankConfig, patience: timedelta
) -> tuple[bytes, bytes]:
    if rank == 0:
        store.set("session", secrets.token_hex(_SESSION_BYTES + _SECRET_BYTES))
    with _named(store, ["session"], patience):
        store.wait(["session"], patience)
    shared = bytes.fromhex(store.get("session").decode())
    given = _read_secret(config.secret_file) if config.secret_file else shared[_SESSION_BYTES:]
    return shared[:_SESSION_BYTES], given


def _read_secret(path: Path) -> bytes:
    try:
        secret, why = path.read_bytes().strip(), "it is empty"
    except OSError as error:
        secret, why = b"", error.strerror or str(error)
    if not secret:
        raise LaunchError(
            f"the secret of the job cannot be read from {str(path)!r}",
            why,
            "Put the same random text into this file on every host,"
            " or unset SMDIST_SECRET_FILE to let rank 0 make a secret",
        )
    return secret


def _exchange(
    store: Store, what: str, rank: int, size: int, mine: dict[str, Any], patience: timedelta
) -> list[dict[str, Any]]:
    """Every rank says something; every rank hears all, in rank order."""
    keys = [f"{what}/{other}" for other in range(size)]
    store.set(keys[rank], json.dumps(mine))
    with _named(store, keys, patience):
        store.wait(keys, patience)
    return [json.loads(store.get(key)) for key in keys]


@contextmanager
def _named(store: Store, keys: list[str], patience: timedelta) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # each kind of store raises another
        missing = [key for key in keys if not store.check([key])]
        raise LaunchError(
            f"still waiting for {', '.join(missing)} after {patience.total_seconds():.0f} s",
            "every rank announces itself in the store before training starts",
            "Look for the ranks that never started in the hosts' logs,"
            " or give a longer start_timeout_seconds",
        ) from error


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


def _check_releases(others: list[dict[str, Any]]) -> None:
    releases = {other["version"]: other["label"] for other in reversed(others)}
    if len(releases) > 1:
        (one, there), (other, elsewhere), *_ = releases.items()
        raise SkewError(
            f"{there} runs sagemaker-dist-runtime {one} and {elsewhere} runs {other}",
            "all ranks of a job speak one protocol",
            "Use the same image on every host",
        )
