# SPDX-License-Identifier: Apache-2.0
"""Connection of all ranks' engines, through a key-value store that every rank can reach.

Rank 0 publishes a random session id. If the job has no secret, rank 0 also publishes a random one
and deletes it once all ranks have read it. Each rank publishes its name, its options and its
engine's address, and reads those of all others. The engines open their connections when they are
first used. If a process connects a second engine through the same store, a counter in the names of
the keys separates the two.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Any

import smdist
from sagemaker_dist.errors import DistError, LaunchError, OptionError, SkewError, raise_all
from smdist.config import RankConfig, read_fault_file
from smdist.dataparallel.rendezvous.address import own_address
from smdist.dataparallel.rendezvous.autotune import check_agreement, fixed_by, tune
from smdist.dataparallel.rendezvous.engine_interface import E, Engine, EngineModule
from smdist.dataparallel.rendezvous.history_dump import start_history
from smdist.dataparallel.rendezvous.host_identity import (
    host_identity,
    host_numbers,
    machine_identity,
    pause_microseconds,
)
from smdist.dataparallel.rendezvous.protection import (
    log_protection,
    openssl_faults,
    secret_options,
    warn_unprotected,
    warn_weak,
)
from smdist.dataparallel.rendezvous.secret import read_secret
from smdist.dataparallel.rendezvous.store import Store
from smdist.restart_environment import CONNECTED

_SESSION_BYTES = 16
_SECRET_BYTES = 32
# limits of the engine, by the names of its arguments; tests set them
_engine_limits: dict[str, Any] = {}
_READ_SECONDS = 5.0  # time for other ranks to read that the job cannot start


@dataclass(frozen=True, slots=True)
class _StoreView:
    """Functions with which one rank reads and writes the keys of one engine in the store.

    The names of these keys begin with the same prefix on all ranks.

    Attributes:
        store: The store of all ranks.
        prefix: Beginning of the keys of this engine.
        rank: This rank's number.
        size: Number of ranks.
        timeout_seconds: Seconds to wait for a value of another rank.
    """

    store: Store
    prefix: str
    rank: int
    size: int
    timeout_seconds: float

    def publish(self, what: str, value: bytes) -> None:
        self.store.set(f"{self.prefix}/{what}", value)

    def delete(self, what: str) -> None:
        self.store.delete(f"{self.prefix}/{what}")

    def collect(self, what: str, ranks: Sequence[int]) -> list[bytes]:
        """Wait until each of `ranks` has published a value under the name `what`.

        Return the values in the order of `ranks`.

        Raises:
            LaunchError: A rank has not published its value in time.
        """
        return self._collect(what, ranks, self.timeout_seconds)

    def exchange(self, what: str, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Publish this rank's dict `mine` under the name `what`; return the dicts of all ranks.

        Element r of the result is the dict of rank r. Rank 0 collects all dicts and publishes them
        as one value. Each other rank therefore makes only two requests to the store.

        Raises:
            LaunchError: A rank has not published its dict in time.
        """
        self.publish(f"{what}/{self.rank}", json.dumps(mine).encode())
        if self.rank == 0:
            values = self.collect(what, range(self.size))
            self.publish(f"{what}/all", b"[" + b",".join(values) + b"]")
            return [json.loads(value) for value in values]
        try:
            collected = self.store.get(f"{self.prefix}/{what}/all", self.timeout_seconds)
        except TimeoutError:
            self._collect(what, range(self.size), 0)  # raises with the missing ranks' names
            raise _missing([0], self.timeout_seconds) from None
        everything: list[dict[str, Any]] = json.loads(collected)
        return everything

    def wait_until_read(self, what: str, ranks: Sequence[int]) -> None:
        """Wait until `ranks` have read what exchange() has returned, or for a few seconds.

        Call it on all of these ranks, and on rank 0, before an error ends them: the store may end
        with rank 0.
        """
        with suppress(LaunchError, OSError, RuntimeError):  # the store has ended, or a rank has
            if self.rank > 0:
                self.publish(f"{what}/read/{self.rank}", b"")
            else:
                self._collect(f"{what}/read", [rank for rank in ranks if rank > 0], _READ_SECONDS)

    def _collect(self, what: str, ranks: Sequence[int], seconds: float) -> list[bytes]:
        end = time.monotonic() + seconds
        values, missing = [], []
        for rank in ranks:
            try:
                left = max(end - time.monotonic(), 0)
                values.append(self.store.get(f"{self.prefix}/{what}/{rank}", left))
            except TimeoutError:
                missing.append(rank)
        if missing:
            raise _missing(missing, self.timeout_seconds)
        return values


def connect(store: Store, rank: int, size: int, config: RankConfig, module: EngineModule[E]) -> E:
    """Create this rank's engine, connect it to all other ranks' engines, and choose its settings.

    Args:
        store: Store that all ranks can reach.
        rank: This rank's number.
        size: Number of ranks.
        config: This rank's configuration.
        module: smdist's compiled module for torch or for TensorFlow.

    Raises:
        LaunchError: A rank was missing after the start timeout, or could not start. Or this
            process may not have as many open files as connections need.
        SkewError: Ranks run different releases of the runtime.
        OptionError: Ranks have different options.
    """
    view = _view(store, rank, size, config.start_timeout_seconds)
    given = read_secret(config.secret_file, config.secret)
    session, secret = _session_and_secret(view, given, config)
    others = _introduce(view, config, given is not None, [*openssl_faults(config, module)])
    names = [other["label"] for other in others]
    hosts = host_numbers([other["host"] for other in others])
    if given:
        warn_weak(given, config, rank, hosts)
    machine = machine_identity()
    neighbours = sum(other["machine"] == machine for other in others)
    engine = module.Engine(
        rank,
        size,
        own_address(config),
        names,
        hosts,
        secret,
        session,
        pause_microseconds(neighbours),
        config.tuning.arriving_bytes,
        config.tuning.lanes,
        config.start_timeout_seconds,
        config.integrity,
        config.encrypt,
        config.silence_seconds,
        ended_hosts_file=str(config.ended_hosts_file or ""),
        **_engine_limits,
    )
    _join(view, engine, names)
    start_history(engine, module, config)
    if rank == 0:
        log_protection(config, hosts)
    fixed = fixed_by(config.tuning, hosts, module)
    tune(engine, rank, hosts, fixed, config.start_timeout_seconds)
    _note_connected()
    if rank == 0 and config.attempt:
        sys.stderr.write(f"smdist: attempt {config.attempt}: all {size} ranks are connected\n")
    return engine


def _note_connected() -> None:
    """Create the file by which this rank's guard knows that all ranks are connected."""
    if path := read_fault_file():
        with suppress(OSError):
            path.with_name(CONNECTED).touch()


def _introduce(
    view: _StoreView, config: RankConfig, has_secret: bool, faults: Sequence[OptionError]
) -> list[dict[str, Any]]:
    """Publish what other ranks must know of this rank; return what all ranks have published.

    Args:
        view: Keys of the engine in the store.
        config: This rank's configuration.
        has_secret: True if this rank has a secret of its own, so that it needs none of rank 0.
        faults: Reasons why this rank cannot start. All ranks raise an error if there are any.

    Raises:
        LaunchError: A rank was missing after the start timeout, or could not start. Or only some
            ranks have a secret.
        SkewError: Ranks run different releases of the runtime.
        OptionError: This rank has faults, or ranks have different options.
    """
    me = {
        "label": rank_name(view.rank, config),
        "version": smdist.__version__,
        "host": host_identity(config),
        "machine": machine_identity(),
        "has_secret": has_secret,
        "options": _options(config),
        "faults": [fault.what for fault in faults],
    }
    others = view.exchange("who", me)
    if view.rank == 0 and not has_secret:
        view.delete("session/0")  # all ranks have read it: they published after that
    try:
        raise_all(faults)
        _check_presence(others)
        _check_releases(others)
        _check_secrets(others)
        check_agreement([each["options"] for each in others], [each["label"] for each in others])
    except DistError:
        able = [number for number, each in enumerate(others) if not each.get("faults")]
        view.wait_until_read("who", able)
        raise
    return others


def decline(store: Store, rank: int, size: int, error: OptionError) -> None:
    """Publish that this rank cannot start because of `error`.

    All ranks that wait in connect() then raise LaunchError at once.

    Args:
        store: Store that all ranks can reach.
        rank: This rank's number.
        size: Number of ranks.
        error: Fault of this rank's options.
    """
    view = _view(store, rank, size, 0)
    faults = getattr(error, "faults", (error,))
    value = {
        "label": f"rank {rank} on {socket.gethostname()}",
        "faults": [fault.what for fault in faults],
    }
    view.publish(f"who/{rank}", json.dumps(value).encode())
    if rank == 0:
        view.publish("session/0", bytes(_SESSION_BYTES + _SECRET_BYTES))
        view.publish("who/all", json.dumps([value]).encode())


def rank_name(rank: int, config: RankConfig) -> str:
    """Return the name of this rank in messages: "rank 3 on algo-2"."""
    return f"rank {rank} on {config.host_label}"


def _view(store: Store, rank: int, size: int, timeout_seconds: float) -> _StoreView:
    generation = store.add(f"smdist/generation/{rank}", 1)
    return _StoreView(store, f"smdist/{generation}", rank, size, timeout_seconds)


def _options(config: RankConfig) -> dict[str, Any]:
    """Return the options, by name, that must have the same values on all ranks."""
    alike = {
        "fusion_bytes": config.fusion_bytes,
        "timeout_seconds": config.timeout_seconds,
        "silence_seconds": config.silence_seconds,
        "integrity": config.integrity,
        "encrypt": int(config.encrypt),
        "gpu_collectives": config.gpu_collectives,
    }
    return asdict(config.tuning) | alike


def _join(view: _StoreView, engine: Engine, names: list[str]) -> None:
    host, port, local = engine.endpoint()
    places = view.exchange("where", {"host": host, "port": port, "local": local})
    _check_places([each["host"] for each in places], names)
    try:
        engine.join([(each["host"], each["port"], each["local"]) for each in places])
    except OSError as error:
        raise LaunchError(
            f"{names[view.rank]} cannot connect to {view.size - 1} other ranks",
            error.strerror or str(error),
            "Raise the hard limit of open files (ulimit -Hn) before the job starts, or use fewer"
            " ranks",
            about="RLIMIT_NOFILE",
            kind="system",
        ) from error


def _session_and_secret(
    view: _StoreView, given: bytes | None, config: RankConfig
) -> tuple[bytes, bytes]:
    """Return the session id of rank 0, and the secret of the job.

    The secret is `given`, the one that this rank has. A job without a secret uses a random one of
    rank 0, which all ranks read in the store; rank 0 then logs that the start is not protected.
    """
    if view.rank == 0:
        shared = secrets.token_bytes(_SESSION_BYTES)
        if given is None:
            shared += secrets.token_bytes(_SECRET_BYTES)
        view.publish("session/0", shared)
        if given is None and view.size > 1 and not config.has_guard:
            # Under a guard, the launcher has said it.
            warn_unprotected(tuple(secret_options(config)))
    (shared,) = view.collect("session", [0])
    return shared[:_SESSION_BYTES], given or shared[_SESSION_BYTES:]


def _missing(missing: list[int], timeout_seconds: float) -> LaunchError:
    names = ", ".join(f"rank {rank}" for rank in missing)
    have = "has" if len(missing) == 1 else "have"
    return LaunchError(
        f"{names} {have} not joined the job within {timeout_seconds:g} s",
        "training starts only after all ranks have joined",
        "Search the logs of all hosts for the reason why these ranks did not start;"
        " if they only start slowly, raise start_timeout_seconds",
        about="start_timeout_seconds",
        kind="timeout",
        culprit=missing[0],
    )


def _check_places(hosts: list[str], names: list[str]) -> None:
    """Raise LaunchError if only some of the engines' addresses are loopback addresses.

    Ranks of other machines cannot connect to a loopback address. `hosts` has the address of each
    rank's engine, `names` each rank's name for the error.
    """
    local = [name for host, name in zip(hosts, names, strict=True) if _is_loopback(host)]
    if 0 < len(local) < len(hosts):
        raise LaunchError(
            f"{local[0]} listens at a loopback address",
            "ranks on other machines cannot connect to it; /etc/hosts of its machine may map"
            " the host name to 127.0.1.1",
            "Set SMDIST_INTERFACE on each host to the name of its network interface",
            about="SMDIST_INTERFACE",
        )


def _is_loopback(host: str) -> bool:
    return ip_address(host).is_loopback


def _check_presence(others: list[dict[str, Any]]) -> None:
    """Raise LaunchError if a rank has published that it cannot start.

    `others` has the dict that each rank has published about itself.
    """
    for number, other in enumerate(others):
        if faults := other.get("faults"):
            raise LaunchError(
                f"{other['label']} could not start",
                "; ".join(faults),
                "Correct these settings of that rank, and start the job again",
                kind="peer",
                culprit=number,
            )


def _check_secrets(others: list[dict[str, Any]]) -> None:
    """Raise LaunchError if some ranks have a secret and others have none."""
    having = [other["label"] for other in others if other["has_secret"]]
    lacking = [other["label"] for other in others if not other["has_secret"]]
    if having and lacking:
        raise LaunchError(
            f"{having[0]} has a secret and {lacking[0]} has none",
            "all ranks of a job must have the same secret",
            "Set SMDIST_SECRET_FILE on every host, to the path of a file with the same text",
            about="SMDIST_SECRET_FILE",
            kind="conflict",
        )


def _check_releases(others: list[dict[str, Any]]) -> None:
    releases = {other["version"]: other["label"] for other in reversed(others)}
    if len(releases) > 1:
        (first, first_rank), (second, second_rank), *_ = releases.items()
        raise SkewError(
            f"{first_rank} runs sagemaker-dist-runtime {first} and {second_rank} runs {second}",
            "all ranks of a job must run the same release",
            "Use the same image on every host",
        )
