# SPDX-License-Identifier: Apache-2.0
"""Protected connection between the launchers of a job: lines of JSON over TCP.

    launcher of another host                   restart coordinator, on the first host
    ├── {"host": "algo-2", "nonce": N1}   ──▶  name of the host, and random text
    ◀── {"nonce": N2, "proof": P1}        ──┤  random text, and proof of the job's secret
    ├── {"proof": P2}                     ──▶  proof of the job's secret; the launcher has joined
    ◀── MAC {...}                        ──▶  messages

A proof is an HMAC of both random texts, keyed by the job's secret. Each message begins with an HMAC
over its direction, its number and its text, keyed for this connection alone; a message that was
changed, repeated, dropped or sent in another connection ends the connection. A job without a secret
uses an empty key, which protects from nothing.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import struct
from typing import Any, Final

MAX_LINE: Final = 1 << 20
MAX_HELLO: Final = 1024  # bytes of a line before the other side has proven the secret
_NONCE_BYTES: Final = 16
_SEND_SECONDS: Final = 5.0
_READ_BYTES: Final = 1 << 16
_COORDINATOR: Final = "coordinator"
_LAUNCHER: Final = "launcher"


class LinkError(Exception):
    """Raised when the other side has closed the connection, or sent what no launcher sends."""


class LinkClosedError(LinkError):
    """Raised when the kernel of the other side has closed the connection in order (FIN).

    It does so when the other process ends in any way. A device between the hosts that ends a
    connection resets it, which is another `LinkError`.
    """


class Keys:
    """Keys of one connection, from the job's secret and the random texts of both sides.

    `host` is the name of the host whose launcher connects.
    """

    def __init__(self, secret: bytes, host: str, nonces: tuple[str, str]) -> None:
        self._secret = secret
        self._context = "\n".join((*nonces, host))

    def proof(self, role: str) -> str:
        """Return the proof that `role` ("coordinator" or "launcher") has the secret."""
        return self._digest(f"smdist {role}").hex()

    def is_proof(self, proof: object, role: str) -> bool:
        """Return True if `proof` is the one of `role`."""
        if not isinstance(proof, str) or not proof.isascii():  # compare_digest takes no other text
            return False
        return hmac.compare_digest(proof, self.proof(role))

    def messages(self) -> bytes:
        """Return the key of the connection's messages."""
        return self._digest("smdist messages")

    def _digest(self, label: str) -> bytes:
        return hmac.digest(self._secret, f"{label}\n{self._context}".encode(), "sha256")


class LauncherLink:
    """Connection on which both sides have proven the secret. Thread safety: none.

    Args:
        connection: Connected socket, which this object owns.
        key: Key of the messages, from `Keys.messages`.
        is_coordinator: True on the coordinator's side.
    """

    def __init__(self, connection: socket.socket, key: bytes, *, is_coordinator: bool) -> None:
        self._connection = connection
        self._key = key
        ours, theirs = (_COORDINATOR, _LAUNCHER) if is_coordinator else (_LAUNCHER, _COORDINATOR)
        self._roles = {"sent": ours, "received": theirs}
        self._counts = {"sent": 0, "received": 0}
        self._buffer = b""

    def fileno(self) -> int:
        """Return the file descriptor of the connection, for a selector."""
        return self._connection.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            LinkError: The message was not sent within five seconds, or the connection was closed.
        """
        text = json.dumps(message).encode()
        self._connection.settimeout(_SEND_SECONDS)
        try:
            self._connection.sendall(self._mac("sent", text) + b" " + text + b"\n")
        except OSError as error:
            raise LinkError(error.strerror or str(error)) from error

    def receive(self) -> list[dict[str, Any]]:
        """Read what has arrived, without waiting, and return the complete messages.

        Raises:
            LinkClosedError: The other side has closed the connection.
            LinkError: The connection has failed, or a message is not the other side's own.
        """
        self._connection.setblocking(False)  # `send` has set a timeout, which recv would wait for
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise LinkError(error.strerror or str(error)) from error
        if not data:
            raise LinkClosedError("the connection was closed")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MAX_LINE:
            raise LinkError("a message is too long")
        return [self._message(line) for line in lines]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def reset(self) -> None:
        """Close the connection so that the other side does not take it for the end of this process.

        The other side's `receive` then raises another error than `LinkClosedError`.
        """
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)  # reset at once: RST instead of FIN
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._connection.close()

    def end_sending(self) -> None:
        """Close this side's half of the connection, so that the other side reads what was sent."""
        try:
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:  # the other side has closed it
            return

    def _message(self, line: bytes) -> dict[str, Any]:
        mac, _, text = line.partition(b" ")
        if not hmac.compare_digest(mac, self._mac("received", text)):
            raise LinkError("a message has a wrong authentication code")
        return _object(text)

    def _mac(self, way: str, text: bytes) -> bytes:
        head = f"{self._roles[way]} {self._counts[way]} ".encode()
        self._counts[way] += 1
        return hmac.digest(self._key, head + text, "sha256").hex().encode()


class Handshake:
    """Coordinator's side of a connection's start. Thread safety: none.

    Attributes:
        host: Name that the connecting launcher gave; "" before its first line.
        key: Key of the messages; empty until the launcher has proven the secret.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._keys: Keys | None = None
        self.host = ""
        self.key = b""

    def reply(self, line: bytes) -> bytes:
        """Return the answer to a line of the launcher; empty once it has proven the secret.

        Raises:
            LinkError: The line is none that a launcher of this job sends.
        """
        found = _object(line)
        if self._keys is None:
            self.host, theirs = _text(found, "host"), _text(found, "nonce")
            ours = secrets.token_hex(_NONCE_BYTES)
            self._keys = Keys(self._secret, self.host, (theirs, ours))
            answer = {"nonce": ours, "proof": self._keys.proof(_COORDINATOR)}
            return json.dumps(answer).encode() + b"\n"
        if not self._keys.is_proof(found.get("proof"), _LAUNCHER):
            raise LinkError("it does not have the secret of this job")
        self.key = self._keys.messages()
        return b""


def join(address: tuple[str, int], host: str, secret: bytes, seconds: float) -> LauncherLink:
    """Connect the launcher of `host` to the coordinator at `address`, within `seconds`.

    Raises:
        OSError: The coordinator does not listen, or did not answer in time.
        LinkError: The process at this address does not have the secret of this job.
    """
    connection = socket.create_connection(address, timeout=seconds)
    try:
        ours = secrets.token_hex(_NONCE_BYTES)
        connection.sendall(json.dumps({"host": host, "nonce": ours}).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            part = connection.recv(1)
            if not part or len(line) > MAX_HELLO:
                raise ConnectionResetError("the coordinator has closed the connection")
            line += part
        found = _object(line)
        keys = Keys(secret, host, (ours, _text(found, "nonce")))
        if not keys.is_proof(found.get("proof"), _COORDINATOR):
            raise LinkError("the coordinator does not have the secret of this host")
        proof = {"proof": keys.proof(_LAUNCHER)}
        connection.sendall(json.dumps(proof).encode() + b"\n")
    except BaseException:
        connection.close()
        raise
    detect_loss(connection)
    return LauncherLink(connection, keys.messages(), is_coordinator=False)


def pair(secret: bytes, host: str) -> tuple[LauncherLink, LauncherLink]:
    """Return both ends of a connection within the first host: the launcher's, the coordinator's."""
    ours, theirs = socket.socketpair()
    key = Keys(secret, host, (secrets.token_hex(_NONCE_BYTES), "")).messages()
    return (
        LauncherLink(ours, key, is_coordinator=False),
        LauncherLink(theirs, key, is_coordinator=True),
    )


def detect_loss(connection: socket.socket) -> None:
    """Have the kernel close the connection 30 seconds after the other host was lost."""
    options = {
        socket.TCP_KEEPIDLE: 10,
        socket.TCP_KEEPINTVL: 5,
        socket.TCP_KEEPCNT: 4,
        socket.TCP_USER_TIMEOUT: 30_000,  # milliseconds
        socket.TCP_NODELAY: 1,
    }
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _text(found: dict[str, Any], name: str) -> str:
    """Return a text of ASCII, which each side can encode; raise a LinkError for anything else."""
    value = found.get(name)
    if not isinstance(value, str) or not value.isascii():
        raise LinkError(f"it sent a {name} that is no ASCII text")
    return value


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LinkError("it sent a line that is not JSON") from error
    if not isinstance(found, dict):
        raise LinkError("it sent a line that is no JSON object")
    return found
