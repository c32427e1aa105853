# SPDX-License-Identifier: Apache-2.0
"""Two emulated hosts whose network can be cut in either direction: network namespaces on a cable.

A direction is cut by a wrong hardware address of the receiver, so packets are lost on the way and
neither kernel learns of it. `unplug` takes the interface away, as a driver that resets does.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_INTERFACE = "e0"
_NOWHERE = "02:00:00:00:00:99"
_NUMBERS = itertools.count()


def fault_of_namespaces() -> str:
    """Return why this process cannot make network namespaces; "" if it can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    name = f"sdtry{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.decode().strip()}"
    _ip("netns", "del", name)
    return ""


class CutHosts:
    """Two hosts on one cable; host 0 has address 10.91.0.1, host 1 has 10.91.0.2."""

    def __init__(self) -> None:
        number = next(_NUMBERS)
        self._names = [f"sdcut{os.getpid()}-{number}-{host}" for host in (0, 1)]

    def address(self, host: int) -> str:
        return f"10.91.0.{host + 1}"

    def start(self, host: int, command: list[str], **options: Any) -> subprocess.Popen[str]:
        """Start a command on a host, with pipes for its standard input and output."""
        inside = ["ip", "netns", "exec", self._names[host], *command]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(inside, **pipes, **options)

    def cut(self, *senders: int) -> None:
        """Lose every packet that these hosts send."""
        for host in senders:
            self._neighbour(host, "replace", "lladdr", _NOWHERE, "nud", "permanent")

    def restore(self, *senders: int) -> None:
        """Deliver what these hosts send again."""
        for host in senders:
            self._neighbour(host, "del")

    def unplug(self, host: int) -> None:
        _ip("-n", self._names[host], "link", "set", _INTERFACE, "down")

    def plug(self, host: int) -> None:
        _ip("-n", self._names[host], "link", "set", _INTERFACE, "up")

    def kill_sockets(self, host: int, peer_port: int | None = None) -> None:
        """Reset the established TCP connections between the hosts, as a middlebox would."""
        other = self.address(1 - host)
        port = [] if peer_port is None else ["dport", "=", str(peer_port)]
        command = ["ss", "-K", "-t", "state", "established", "dst", other, *port]
        inside = ["ip", "netns", "exec", self._names[host], *command]
        subprocess.run(inside, capture_output=True, check=True)

    def has_connection(self, host: int, port: int) -> bool:
        """Return True if a process of a host serves a TCP connection at this port."""
        command = ["ss", "-H", "-t", "state", "established", "sport", "=", str(port)]
        inside = ["ip", "netns", "exec", self._names[host], *command]
        return bool(subprocess.run(inside, capture_output=True, check=True).stdout)

    def _neighbour(self, host: int, verb: str, *arguments: str) -> None:
        place = [self.address(1 - host), *arguments, "dev", _INTERFACE]
        _ip("-n", self._names[host], "neigh", verb, *place)

    def _add(self) -> None:
        for name in self._names:
            _ip("netns", "add", name)
        ends = (["name", _INTERFACE, "netns", name] for name in self._names)
        _ip("link", "add", *next(ends), "type", "veth", "peer", *next(ends))
        for host, name in enumerate(self._names):
            _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", _INTERFACE)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", _INTERFACE, "up")

    def _remove(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextmanager
def cut_hosts() -> Iterator[CutHosts]:
    """Make two hosts, and remove them after the `with` block."""
    hosts = CutHosts()
    try:
        hosts._add()
        yield hosts
    finally:
        hosts._remove()


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"ip {' '.join(arguments)} failed: {done.stderr.strip()}")
