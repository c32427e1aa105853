# SPDX-License-Identifier: Apache-2.0
"""Listener of the first host's launcher, at which the other launchers of the job join."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from smdist.launch.launcher_link import MAX_HELLO, Handshake, LauncherLink, LinkError, detect_loss

_PROOF_SECONDS: Final = 15.0  # time limit of a new connection to prove the secret
_MAX_UNPROVEN: Final = 64
_MAX_LINES: Final = 20  # log lines about refused connections


@dataclass(slots=True)
class _Newcomer:
    """Connection of a process that is, or claims to be, a launcher of the job."""

    connection: socket.socket
    address: str
    handshake: Handshake
    deadline: float
    received: bytes = b""


class LauncherReception:
    """Accepts connections, and passes on those whose launcher has proven the job's secret.

    Its owner calls the functions that it registers at `selector`, and `check`. Thread safety: none.

    Args:
        name: What the launchers connect to, in messages.
        hosts: Names of all hosts of the job; the first one is this host.
        secret: Secret of the job; empty if it has none.
        listener: Listening socket, which this object owns.
        selector: Selector of the owner; the data of its events are functions without arguments.
        on_joined: Function that is called with the name of a host and the connection to it.
        print_line: Function that prints a line in this host's log.
    """

    def __init__(
        self,
        name: str,
        hosts: Sequence[str],
        secret: bytes,
        listener: socket.socket,
        *,
        selector: selectors.BaseSelector,
        on_joined: Callable[[str, LauncherLink], None],
        print_line: Callable[[str], None],
    ) -> None:
        self._name = name
        self._hosts = hosts
        self._secret = secret
        self._listener = listener
        self._selector = selector
        self._on_joined = on_joined
        self._print_line = print_line
        self._newcomers: dict[socket.socket, _Newcomer] = {}
        self._num_refused = 0
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def check(self) -> None:
        """Refuse connections that have not proven the secret in time."""
        for newcomer in list(self._newcomers.values()):
            if time.monotonic() >= newcomer.deadline:
                self._refuse(newcomer, "it has not proven the secret in time")

    def close(self) -> None:
        """Close the listener, and all connections that have not proven the secret."""
        for connection in self._newcomers:
            connection.close()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, source = self._listener.accept()
            connection.setblocking(False)
            if len(self._newcomers) >= max(_MAX_UNPROVEN, len(self._hosts)):
                oldest = next(iter(self._newcomers.values()))
                self._refuse(oldest, "too many connections have not proven the secret")
            deadline = time.monotonic() + _PROOF_SECONDS
            address = f"{source[0]}:{source[1]}"
            newcomer = _Newcomer(connection, address, Handshake(self._secret), deadline)
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
        if handshake.host not in self._hosts[1:]:
            raise LinkError(f"it is {handshake.host!r}, and no other host of this job")
        del self._newcomers[newcomer.connection]
        self._selector.unregister(newcomer.connection)
        detect_loss(newcomer.connection)
        link = LauncherLink(newcomer.connection, handshake.key, is_coordinator=True)
        self._on_joined(handshake.host, link)

    def _refuse(self, newcomer: _Newcomer, why: str) -> None:
        self._num_refused += 1
        if self._num_refused <= _MAX_LINES:
            source = newcomer.address
            self._print_line(f"refused a connection from {source} to {self._name}: {why}")
        self._drop(newcomer)

    def _drop(self, newcomer: _Newcomer) -> None:
        del self._newcomers[newcomer.connection]
        self._selector.unregister(newcomer.connection)
        newcomer.connection.close()
