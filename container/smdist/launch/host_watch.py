# SPDX-License-Identifier: Apache-2.0
"""Watch over the launchers of a job: which of them have ended, and which ranks.

    first host   HubWatch ◀── LauncherLink ──▶ MemberWatch   every other host
                    │                  {"ends": [[2, 0]]} ◀──  │   ranks and their exit statuses
                    │  ──▶ {"ended": ["algo-3"], "ends": ...}  │
                    ▼                                          ▼
               RankEnds, EndedHosts                     RankEnds, EndedHosts

EndedHosts is a file for the engines of the host's ranks, RankEnds tells the launcher how ranks of
other hosts ended (rank_ends.py).

If the processes of a host end together with its network, as in a container that is removed, nothing
refuses the connections that other ranks open again, and they would wait for the network to come
back. But the kernel of that host has closed the connection of its launcher in order. An engine that
waits for a lane to such a host looks into the file, and counts the rank as lost. Emulated hosts
have one network, which always refuses connections to processes that have ended; their engines do
without the file.

A connection that fails in another way proves nothing: it is made again, and nobody is counted as
ended. A launcher that does not answer, because it was stopped or its network is gone, is not
counted as ended either. No job fails because of this watch: without it, such a host is known after
`silence_seconds`.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from smdist.launch.launcher_link import LauncherLink, LinkClosedError, LinkError, join
from smdist.launch.launcher_reception import LauncherReception
from smdist.launch.rank_ends import RankEnds, decode, encode

PrintLine = Callable[[str], None]

ENDED_HOSTS: Final = "ended-hosts"
_TICK_SECONDS: Final = 0.1
_JOIN_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPlace:
    """Place of this host among those whose launchers are watched.

    Attributes:
        host: Name of this host.
        hosts: Names of all hosts of the job; the launcher of the first one is the hub.
        addresses: IP address of each host, by name.
        port: Port of the hub.
        listening_address: IP address at which the hub listens; "" for all addresses.
        folder: Private directory of this host's launcher.
        secret: Secret of the job.
    """

    host: str
    hosts: tuple[str, ...]
    addresses: Mapping[str, str]
    port: int
    listening_address: str
    folder: Path
    secret: bytes = field(repr=False)

    @property
    def file(self) -> Path:
        """Path of the file for the engines of this host's ranks."""
        return self.folder / ENDED_HOSTS

    @property
    def is_useful(self) -> bool:
        """True if the hosts have addresses of their own, and the watch is protected.

        Without a secret, anybody could say that a launcher has ended.
        """
        own = {self.addresses[host] for host in self.hosts}
        return len(own) == len(self.hosts) > 1 and bool(self.secret)

    @property
    def can_lose_network(self) -> bool:
        """True unless a host is emulated, with a loopback address."""
        return not any(ip_address(self.addresses[host]).is_loopback for host in self.hosts)


class EndedHosts:
    """File with the addresses of the hosts whose launcher has ended. Thread safety: none."""

    def __init__(self, place: WatchPlace) -> None:
        self._place = place

    def write(self, hosts: Iterable[str]) -> None:
        """Replace the content of the file; does nothing if the directory was removed."""
        known = self._place.addresses
        text = "".join(f"{known[host]}\n" for host in sorted(hosts) if host in known)
        unfinished = self._place.file.with_suffix(".new")
        with suppress(OSError):
            unfinished.write_text(text, encoding="ascii")
            unfinished.replace(self._place.file)


@contextmanager
def watch_hosts(place: WatchPlace, print_line: PrintLine) -> Iterator[RankEnds | None]:
    """Watch the other launchers during a `with` block; on every host, if `place.is_useful`.

    Yields the exit statuses of ranks, to read and to add to; None if there is no watch.

    Args:
        place: Place of this host in the job.
        print_line: Function that prints a line in this host's log.
    """
    watch = _started(place, print_line)
    try:
        yield None if watch is None else watch.ends
    finally:
        if watch is not None:
            watch.close()


def _started(place: WatchPlace, print_line: PrintLine) -> HubWatch | MemberWatch | None:
    if place.host != place.hosts[0]:
        return MemberWatch(place)
    try:
        return HubWatch(place, _listener(place), print_line)
    except OSError as error:
        print_line(
            f"cannot watch the launchers of the other hosts at port {place.port}"
            f" ({error.strerror or error}): a host that ends together with its network is known"
            " only after silence_seconds, and no failure names a rank that left without an error"
        )
        return None


def _listener(place: WatchPlace) -> socket.socket:
    both = not place.listening_address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    address = (place.listening_address, place.port)
    return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=both)


class HubWatch:
    """Thread of the first host's launcher, to which the others are connected.

    Thread safety: `close` may be called from another thread than the watch's own.

    Args:
        place: Place of this host in the job.
        listener: Listening socket for the other launchers.
        print_line: Function that prints a line in this host's log.

    Attributes:
        ends: Exit statuses of ranks.
    """

    def __init__(self, place: WatchPlace, listener: socket.socket, print_line: PrintLine) -> None:
        self._file = EndedHosts(place)
        self.ends = RankEnds()
        self._links: dict[str, LauncherLink] = {}
        self._ended: set[str] = set()
        self._sent: dict[int, int] = {}  # exit statuses that the members know
        self._selector = selectors.DefaultSelector()
        self._reception = LauncherReception(
            "the watch over launchers",
            place.hosts,
            place.secret,
            listener,
            selector=self._selector,
            on_joined=self._on_joined,
            print_line=print_line,
        )
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="smdist-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close the connections, because this launcher ends."""
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                for key, _ in self._selector.select(_TICK_SECONDS):
                    key.data()
                self._reception.check()
                self._send_ends()
            self._send_ends()
        finally:
            self._selector.close()
            self._reception.close()
            for link in self._links.values():
                link.close()

    def _on_joined(self, host: str, link: LauncherLink) -> None:
        if host in self._links:
            self._drop(host)
        self._links[host] = link
        self._selector.register(link, selectors.EVENT_READ, lambda: self._receive(host, link))
        if host in self._ended:  # the host was replaced, and has a new launcher
            self._ended.discard(host)
            self._publish()
        elif self._ended or self._sent:
            self._send(link)

    def _receive(self, host: str, link: LauncherLink) -> None:
        if self._links.get(host) is not link:
            return
        try:
            for message in link.receive():
                self.ends.add(decode(message.get("ends")))
        except LinkClosedError:
            self._drop(host)
            self._ended.add(host)
            self._publish()
        except LinkError:
            self._drop(host)

    def _drop(self, host: str) -> None:
        link = self._links.pop(host)
        self._selector.unregister(link)
        link.reset()

    def _send_ends(self) -> None:
        """Send the members how ranks ended, if there is news."""
        known = self.ends.known()
        if known != self._sent:
            self._sent = known
            self._send_all()

    def _publish(self) -> None:
        self._file.write(self._ended)
        self._send_all()

    def _send_all(self) -> None:
        for link in self._links.values():
            self._send(link)

    def _send(self, link: LauncherLink) -> None:
        with suppress(LinkError):  # the loss is noticed when the link is read
            link.send({"ended": sorted(self._ended), "ends": encode(self._sent)})


class MemberWatch:
    """Thread of another host's launcher, which is connected to the first host's.

    Thread safety: `close` may be called from another thread than the watch's own.

    Args:
        place: Place of this host in the job.

    Attributes:
        ends: Exit statuses of ranks.
    """

    def __init__(self, place: WatchPlace) -> None:
        self.ends = RankEnds()
        self._place = place
        self._file = EndedHosts(place)
        self._ended: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="smdist-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close the connection, because this launcher ends."""
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)  # a thread that connects just now ends with the process

    def _run(self) -> None:
        place = self._place
        address = (place.addresses[place.hosts[0]], place.port)
        while not self._closing.is_set():
            with suppress(OSError, LinkError):
                self._follow(join(address, place.host, place.secret, _JOIN_SECONDS))
            self._closing.wait(_PAUSE_SECONDS)

    def _follow(self, link: LauncherLink) -> None:
        """Read what the hub sends, until the connection or this launcher ends."""
        self._set_ended(self._ended - {self._place.hosts[0]})
        sent: dict[int, int] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(link, selectors.EVENT_READ)
            try:
                while not self._closing.is_set():
                    if selector.select(_TICK_SECONDS):
                        self._read(link)
                    sent = self._send_ends(link, sent)
                self._send_ends(link, sent)
            except LinkClosedError:
                link.reset()
                self._set_ended(self._ended | {self._place.hosts[0]})
            except LinkError:
                link.reset()
            else:
                link.close()

    def _send_ends(self, link: LauncherLink, sent: dict[int, int]) -> dict[int, int]:
        """Send the hub how ranks of this host ended, if that is not what was `sent`; return it.

        Raises:
            LinkError: The connection has failed.
        """
        own = self.ends.own()
        if own != sent:
            link.send({"ends": encode(own)})
        return own

    def _read(self, link: LauncherLink) -> None:
        for message in link.receive():
            self.ends.add(decode(message.get("ends")))
            ended = message.get("ended")
            if not isinstance(ended, list):
                raise LinkError("a message is not of this release")
            self._set_ended(set(map(str, ended)) - {self._place.host})

    def _set_ended(self, ended: set[str]) -> None:
        if ended != self._ended:
            self._ended = ended
            self._file.write(ended)
