# SPDX-License-Identifier: Apache-2.0
"""Name resolution of a job's hosts.

The hosts of a job start one by one, and the name of a host has no address before its start.
This module waits until every host has an address.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address

from sagemaker_dist.contract import World
from sagemaker_dist.errors import LaunchError

Lookup = Callable[[str], str]
PrintLine = Callable[[str], None]

_LOOPBACK = "127.0.0.1"
_PROGRESS_SECONDS = 10.0


def resolve(host: str) -> str:
    """Return the IPv4 address of a host.

    Raises:
        OSError: The name has no address yet.
    """
    return socket.gethostbyname(host)


def resolve_alone(host: str) -> dict[str, str]:
    """Return {host: address} for the only host of a job, without a query to a name server.

    The address is `host` itself if that is an IP address, else 127.0.0.1. A query would take
    20 s if the name server did not answer.
    """
    try:
        return {host: str(ip_address(host))}
    except ValueError:
        return {host: _LOOPBACK}


def wait_for_hosts(
    world: World, timeout_seconds: float, print_line: PrintLine, lookup: Lookup = resolve
) -> dict[str, str]:
    """Return the IP address of each host by name, retrying until all have one.

    Args:
        world: The hosts to wait for.
        timeout_seconds: Seconds to wait.
        print_line: Function that prints a line; every ten seconds it prints the missing hosts.
        lookup: Function that returns a host's address; it raises OSError if there is none yet.

    Raises:
        LaunchError: After `timeout_seconds` some hosts have no address; the error names them.
    """
    if len(world.hosts) == 1:
        return resolve_alone(world.hosts[0])
    start = time.monotonic()
    found: dict[str, str] = {}
    pause, reported = 0.05, start
    while True:
        found |= _resolve_some(set(world.hosts) - set(found), lookup)
        missing = [world.label(host) for host in world.hosts if host not in found]
        now = time.monotonic()
        if not missing:
            return found
        if now - start >= timeout_seconds:
            raise _unresolved(missing, timeout_seconds)
        if now - reported >= _PROGRESS_SECONDS:
            hosts = ", ".join(missing)
            print_line(f"has waited {now - start:.0f} s for the addresses of the hosts {hosts}")
            reported = now
        time.sleep(min(pause, max(0.0, start + timeout_seconds - now)))
        pause = min(2 * pause, 2.0)


def listening_address(world: World, addresses: Mapping[str, str]) -> str:
    """Return the one address at which the first host listens; "" for all its addresses.

    That is its own address, which is a loopback address if all hosts are on one machine. If only
    some hosts have loopback addresses, /etc/hosts of a machine maps its name to one: the first
    host then listens at all addresses, and the ranks raise an error that explains the cause.

    Args:
        world: The hosts that train together.
        addresses: IP address of each host, by name.
    """
    local = {ip_address(addresses[host]).is_loopback for host in world.hosts}
    return addresses[world.hosts[0]] if len(local) == 1 else ""


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
        f"these hosts have no IP address: {', '.join(missing)}",
        f"their names could not be resolved within {timeout_seconds:g} s",
        "Read the logs of these hosts; if they only start slowly, raise start_timeout_seconds",
        about="start_timeout_seconds",
        kind="timeout",
    )
