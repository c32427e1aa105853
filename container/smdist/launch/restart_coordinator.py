# SPDX-License-Identifier: Apache-2.0
"""Coordinator of a job's restarts: a thread of the first host's launcher, which the others join.

It carries messages between the launchers and `JobAttempts`, which decides.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from smdist.launch.job_attempts import JobAttempts, Message, RestartRules
from smdist.launch.launcher_link import LauncherLink, LinkError
from smdist.launch.launcher_reception import LauncherReception

_TICK_SECONDS: Final = 0.1
_LEAVE_SECONDS: Final = 2.0  # time of other launchers to read the last message


class RestartCoordinator:
    """Thread that lets the hosts of a job agree on restarts.

    Thread safety: `close` may be called from another thread than the coordinator's own.

    Args:
        rules: Rules of the job.
        secret: Secret of the job; empty if it has none.
        own: The coordinator's end of the connection to the launcher of its own host.
        listener: Listening socket for the other launchers; None if the job has one host.
        print_line: Function that prints a line in this host's log.
    """

    def __init__(
        self,
        rules: RestartRules,
        secret: bytes,
        own: LauncherLink,
        listener: socket.socket | None,
        print_line: Callable[[str], None],
    ) -> None:
        self._links: dict[str, LauncherLink] = {}
        self._attempts = JobAttempts(rules, self._send, print_line)
        self._selector = selectors.DefaultSelector()
        self._closing = threading.Event()
        self._add(rules.hosts[0], own)
        self._reception: LauncherReception | None = None
        if listener is not None:
            self._reception = LauncherReception(
                "the coordinator of restarts",
                rules.hosts,
                secret,
                listener,
                selector=self._selector,
                on_joined=self._on_joined,
                print_line=print_line,
            )
        self._thread = threading.Thread(target=self._run, name="smdist-restarts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread when the other launchers have read the last message, or after 2 s."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._turn()
            self._leave()
        finally:
            self._selector.close()
            for link in self._links.values():
                link.close()
            if self._reception is not None:
                self._reception.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TICK_SECONDS):
            key.data()
        self._attempts.check_deadline()
        if self._reception is not None:
            self._reception.check()

    def _leave(self) -> None:
        """Wait for the other launchers to close their connections.

        A socket that is closed before it has read everything drops what it sent last.
        """
        for link in self._links.values():
            link.end_sending()
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._links and time.monotonic() < deadline:
            for key, _ in self._selector.select(_TICK_SECONDS):
                key.data()

    def _on_joined(self, host: str, link: LauncherLink) -> None:
        if host in self._links:
            self._lose(host)
        self._add(host, link)

    def _add(self, host: str, link: LauncherLink) -> None:
        self._links[host] = link
        self._selector.register(link, selectors.EVENT_READ, lambda: self._receive(host))

    def _receive(self, host: str) -> None:
        try:
            messages = self._links[host].receive()
        except LinkError:
            self._lose(host)
            return
        for message in messages:
            self._attempts.receive(host, message)

    def _lose(self, host: str) -> None:
        link = self._links.pop(host)
        self._selector.unregister(link)
        link.close()
        self._attempts.lose(host)

    def _send(self, host: str, message: Message) -> None:
        if link := self._links.get(host):
            with contextlib.suppress(LinkError):  # the loss is noticed when the link is read
                link.send(message)
