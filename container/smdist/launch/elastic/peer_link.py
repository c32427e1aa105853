# SPDX-License-Identifier: Apache-2.0
"""Connection between the launchers of two hosts of an elastic job, open as long as both run.

Each launcher listens, and dials the hosts with lower numbers. Both sides prove that they have the
job's secret, as ranks do at the store of the start (`rendezvous.secret_handshake`). The frames
after that carry JSON objects. The kernel closes the connection when the launcher ends in any way,
so its end proves that the host is lost; a connection without replies of the other kernel does not.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from smdist.dataparallel.rendezvous.secret_handshake import (
    DialerHandshake,
    Roles,
    authenticate_dialer,
    read_frame,
)
from smdist.dataparallel.rendezvous.store_protocol import (
    UNAUTHENTICATED_BYTES,
    VALUE_BYTES,
    Frame,
    FrameError,
    FrameKind,
    require_kind,
)

Message = dict[str, Any]
_Result = TypeVar("_Result")

_HANDSHAKE_SECONDS: Final = 15.0
_PROBE_SECONDS: Final = 10  # silence before the kernel asks the other kernel for a reply
_PROBES: Final = 3
_SILENT_MILLISECONDS: Final = 40_000  # silence of the other kernel that ends the connection
_ROLES: Final = Roles("launcher that dials", "launcher that listens")


class SilentError(Exception):
    """Raised when a connection has failed although the other kernel has not closed it."""


class PeerLink:
    """Authenticated connection to the launcher of another host. Thread safety: none.

    Attributes:
        host: Number of the other host in the job.
    """

    def __init__(
        self, host: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.host = host
        self._reader = reader
        self._writer = writer

    def send(self, message: Message) -> None:
        """Queue a message; a connection that has failed drops it."""
        with suppress(OSError, RuntimeError):
            self._writer.write(_frame(message).to_bytes())

    async def receive(self) -> Message | None:
        """Return the next message; None if the other kernel has closed the connection.

        Raises:
            SilentError: The other kernel does not reply, or the other side sends no messages of
                this protocol.
        """
        try:
            return _message(await read_frame(self._reader, VALUE_BYTES))
        except (EOFError, ConnectionResetError, BrokenPipeError):
            return None
        except (OSError, FrameError) as error:
            raise SilentError(str(error)) from error

    async def close(self) -> None:
        """Send what is queued, for at most a second, and close the connection."""
        with suppress(OSError, RuntimeError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), 1.0)
        self._writer.close()


async def dial(address: str, port: int, me: int, host: int, secret: bytes | None) -> PeerLink:
    """Connect to the launcher of `host` and prove the secret.

    Args:
        address: IP address of the other host.
        port: Port at which its launcher listens.
        me: Number of this host.
        host: Number of the other host.
        secret: Secret of the job; None if it has none.

    Raises:
        OSError: Nobody listens there, or the other side closed the connection.
        FrameError: The other side refused this host, or is no launcher of this job.
    """
    reader, writer = await asyncio.open_connection(address, port)
    try:
        handshake = DialerHandshake(secret, _ROLES)
        proof = handshake.proof(await _ask(reader, writer, handshake.greeting))
        if proof is not None:
            handshake.check(await _ask(reader, writer, proof))
        reply = await _ask(reader, writer, _frame({"from": me, "to": host}))
        require_kind(reply, FrameKind.WELCOME)
    except BaseException:
        writer.close()
        raise
    return _link(host, reader, writer)


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, me: int, secret: bytes | None
) -> PeerLink:
    """Let another launcher prove the secret; return the connection to it.

    Args:
        reader: Stream of the connection that was accepted.
        writer: Stream of the same connection.
        me: Number of this host.
        secret: Secret of the job; None if it has none.

    Raises:
        FrameError: The other side does not have the secret, or is no launcher of this job.
        OSError: The connection was closed, or the other side did not reply in 15 seconds.
        EOFError: The connection was closed.
    """
    await _in_time(authenticate_dialer(reader, writer, secret, _ROLES))
    hello = _message(await _read_in_time(reader))
    if hello.get("to") != me or type(hello.get("from")) is not int:
        raise FrameError("a launcher of another job has connected")
    writer.write(Frame(FrameKind.WELCOME).to_bytes())
    return _link(hello["from"], reader, writer)


def _link(host: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> PeerLink:
    connection = writer.get_extra_info("socket")
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MILLISECONDS),
    ):
        connection.setsockopt(level, option, value)
    return PeerLink(host, reader, writer)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: Frame) -> Frame:
    writer.write(frame.to_bytes())
    return await _read_in_time(reader)


async def _read_in_time(reader: asyncio.StreamReader) -> Frame:
    return await _in_time(read_frame(reader, UNAUTHENTICATED_BYTES))


async def _in_time(step: Coroutine[Any, Any, _Result]) -> _Result:
    try:
        return await asyncio.wait_for(step, _HANDSHAKE_SECONDS)
    except asyncio.TimeoutError:
        raise TimeoutError("the other side did not reply in time") from None


def _frame(message: Message) -> Frame:
    return Frame(FrameKind.VALUE, value=json.dumps(message).encode())


def _message(frame: Frame) -> Message:
    """Return the JSON object in a frame.

    Raises:
        FrameError: The frame contains no JSON object.
    """
    try:
        message = json.loads(require_kind(frame, FrameKind.VALUE).value)
    except (ValueError, RecursionError) as error:
        raise FrameError("a received message is not JSON") from error
    if not isinstance(message, dict):
        raise FrameError("a received message is not a JSON object")
    return message
