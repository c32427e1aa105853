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
from dataclasses import dataclass
from typing import Final

from smdist.launch.job_attempts import JobAttempts, Message, RestartRules
from smdist.launch.launcher_link import MAX_HELLO, Handshake, LauncherLink, LinkError, detect_loss

_TICK_SECONDS: Final = 0.1
_PROOF_SECONDS: Final = 15.0  # time limit of a new connection to prove the secret
_LEAVE_SECONDS: Final = 2.0  # time of other launchers to read the last message
_MAX_UNPROVEN: Final = 64
_MAX_LINES: Final = 20  # log lines about refused connections


@dataclass(slots=True)
class _Newcomer:
    """Connection of a process that is, or claims to be, a launcher of the job."""

    connection: socket.socket
    handshake: Handshake
    deadline: float
    received: bytes = b""


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
        self._rules = rules
        self._secret = secret
        self._listener = listener
        self._print_line = print_line
        self._links: dict[str, LauncherLink] = {}
        self._newcomers: dict[socket.socket, _Newcomer] = {}
        self._attempts = JobAttempts(rules, self._send, print_line)
        self._selector = selectors.DefaultSelector()
        self._closing = threading.Event()
        self._num_refused = 0
        self._add(rules.hosts[0], own)
        if listener is not None:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, self._accept)
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
            for connection in self._newcomers:
                connection.close()
            for link in self._links.values():
                link.close()
            if self._listener is not None:
                self._listener.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TICK_SECONDS):
            key.data()
        self._attempts.check_deadline()
        for newcomer in list(self._newcomers.values()):
            if time.monotonic() >= newcomer.deadline:
                self._refuse(newcomer, "it has not proven the secret in time")

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

    def _accept(self) -> None:
        assert self._listener
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            if len(self._newcomers) >= max(_MAX_UNPROVEN, len(self._rules.hosts)):
                oldest = next(iter(self._newcomers.values()))
                self._refuse(oldest, "too many connections have not proven the secret")
            deadline = time.monotonic() + _PROOF_SECONDS
            newcomer = _Newcomer(connection, Handshake(self._secret), deadline)
            self._newcomers[connection] = newcomer
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._greet(newcomer))

    def _greet(self, newcomer: _Newcomer) -> None:
        try:
            # a byte too many would be a message, which belongs to the link
            peeked = newcomer.connection.recv(MAX_HELLO, socket.MSG_PEEK)
            line, newline, _ = peeked.partition(b"\n")
            newcomer.received += newcomer.connection.recv(len(line) + len(newline))
            if not peeked or len(newcomer.received) > MAX_HELLO:
                self._drop(newcomer)
            elif newline:
                line, newcomer.received = newcomer.received.rstrip(b"\n"), b""
                self._on_line(newcomer, line)
        except BlockingIOError:
            return
        except OSError:
            self._drop(newcomer)
        except LinkError as error:
            self._refuse(newcomer, str(error))

    def _on_line(self, newcomer: _Newcomer, line: bytes) -> None:
        handshake = newcomer.handshake
        if answer := handshake.reply(line):
            newcomer.connection.send(answer)  # a few bytes, which fit into the kernel's buffer
            return
        if handshake.host not in self._rules.hosts[1:]:
            raise LinkError(f"it is {handshake.host!r}, and no other host of this job")
        del self._newcomers[newcomer.connection]
        self._selector.unregister(newcomer.connection)
        if handshake.host in self._links:
            self._lose(handshake.host)
        detect_loss(newcomer.connection)
        link = LauncherLink(newcomer.connection, handshake.key, is_coordinator=True)
        self._add(handshake.host, link)

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

    def _refuse(self, newcomer: _Newcomer, why: str) -> None:
        self._num_refused += 1
        if self._num_refused <= _MAX_LINES:
            self._print_line(f"refused a connection to the coordinator of restarts: {why}")
        self._drop(newcomer)

    def _drop(self, newcomer: _Newcomer) -> None:
        del self._newcomers[newcomer.connection]
        self._selector.unregister(newcomer.connection)
        newcomer.connection.close()
