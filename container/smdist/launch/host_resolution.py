# SPDX-License-Identifier: Apache-2.0
"""Name resolution: hosts of a job start one by one, so wait until each name has an address."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from ipaddress import ip_address

from sagemaker_dist.contract import World
from sagemaker_dist.errors import LaunchError

Lookup = Callable[[str], str]
Say = Callable[[str], None]

_LOOPBACK = "127.0.0.1"
_PROGRESS_SECONDS = 10.0


def resolve(host: str) -> str:
    """Return the IPv4 address of a host.

    Raises:
        OSError: The name has no address yet.
    """
    return socket.gethostbyname(host)


def resolve_alone(host: str) -> dict[str, str]:
    """Return this machine's address for the one host of a job, without a name server.

    A query to a name server that does not answer would take 20 s.
    """
    try:
        return {host: str(ip_address(host))}
    except ValueError:
        return {host: _LOOPBACK}


def wait_for_hosts(
    world: World, timeout_seconds: float, say: Say, lookup: Lookup = resolve
) -> dict[str, str]:
    """Resolve every host, retrying until the deadline.

    Raises:
        LaunchError: Some names have no address; the error names them.
    """
    if len(world.hosts) == 1:
        return resolve_alone(world.hosts[0])
    start = time.monotonic()
    found: dict[str, str] = {}
    pause, told = 0.05, start
    while True:
        found |= _resolve_some(set(world.hosts) - set(found), lookup)
        missing = [world.label(host) for host in world.hosts if host not in found]
        now = time.monotonic()
        if not missing:
            return found
        if now - start >= timeout_seconds:
            raise _unresolved(missing, timeout_seconds)
        if now - told >= _PROGRESS_SECONDS:
            say(f"waiting for {', '.join(missing)} since {now - start:.0f} s")
            told = now
        time.sleep(min(pause, max(0.0, start + timeout_seconds - now)))
        pause = min(2 * pause, 2.0)


def _resolve_some(hosts: Iterable[str], lookup: Lookup) -> dict[str, str]:
    found = {}
    for host in sorted(hosts):
        try:
            found[host] = lookup(host)
        except OSError:
            continue
    return found


def _unresolved(missing: list[str], timeout_seconds: float) -> LaunchError:
    return LaunchError(
        f"no address for {', '.join(missing)}",
        f"the name did not resolve within {timeout_seconds:g} s",
        "Read that host's log; raise start_timeout_seconds if it only starts slowly",
    )
