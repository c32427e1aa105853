# SPDX-License-Identifier: Apache-2.0
"""Key-value store over TCP for jobs without torch: rank 0 runs its server, all ranks connect.

The store exists until the engines of all ranks are connected. No rank waits forever: after a
time limit an error names the missing ranks, and if a rank ends early, all others fail at once.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.rendezvous.engine_shutdown import reason_of
from smdist.dataparallel.rendezvous.participants import RendezvousConfig
from smdist.dataparallel.rendezvous.store_connection import StoreConnection, connect_to_server
from smdist.dataparallel.rendezvous.store_protocol import Frame, FrameError, FrameKind, require_kind
from smdist.dataparallel.rendezvous.store_server import StoreServer

_REPLY_SECONDS = 30.0  # time for the reply, in addition to the time that rank 0 itself waits
_HERE = "127.0.0.1"  # rank 0 connects to its own server here if that listens at all addresses


class TcpStore:
    """Client of the store server. Thread safety: only one thread may use it.

    Args:
        link: Connection of this rank to the server, on which the rank has joined the job.
        first: Rank 0's name in messages.
    """

    def __init__(self, link: StoreConnection, first: str) -> None:
        self._link = link
        self._first = first

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key.

        Raises:
            LaunchError: A rank was lost.
        """
        self._request(Frame(FrameKind.SET, 0, key, value))

    def get(self, key: str, timeout_seconds: float) -> bytes:
        """Wait until a rank has set the key, and return its value.

        Raises:
            TimeoutError: No rank has set the key within `timeout_seconds`.
            LaunchError: A rank was lost.
        """
        reply = self._request(
            Frame(FrameKind.GET, int(timeout_seconds * 1000), key), timeout_seconds
        )
        if reply.kind is FrameKind.TIMED_OUT:
            raise TimeoutError(f"no rank has set the key {key!r} within {timeout_seconds:g} s")
        return reply.value

    def add(self, key: str, count: int) -> int:
        """Add `count` to the counter under this key, which starts at 0; return the new value.

        Raises:
            LaunchError: A rank was lost.
        """
        return int(self._request(Frame(FrameKind.ADD, count, key)).value)

    def delete(self, key: str) -> None:
        """Remove the value of a key.

        Raises:
            LaunchError: A rank was lost.
        """
        self._request(Frame(FrameKind.DELETE, 0, key))

    def leave(self, reason: str = "", culprit: int = 0) -> None:
        """Close the connection to the server.

        If `reason` is not empty, this rank has failed because of rank `culprit`, and all other
        ranks raise an error with the reason.
        """
        with suppress(OSError):
            frame = Frame(FrameKind.LEAVE, culprit, value=reason.encode())
            self._link.send(frame, _REPLY_SECONDS)
        self._link.close()

    def _request(self, frame: Frame, timeout_seconds: float = 0) -> Frame:
        try:
            reply = self._link.request(frame, timeout_seconds + _REPLY_SECONDS)
            require_kind(reply, FrameKind.VALUE, FrameKind.TIMED_OUT, FrameKind.REFUSED)
        except (OSError, FrameError) as error:
            what = f"{self._first} has ended before all ranks were connected"
            raise _ended(what, str(error), 0) from error
        if reply.kind is FrameKind.REFUSED:
            why = "a job starts only if all ranks connect, and this rank has ended before"
            raise _ended(reply.value.decode(errors="replace"), why, reply.number)
        return reply


@contextmanager
def open_store(rendezvous: RendezvousConfig) -> Iterator[TcpStore]:
    """Connect to the store of the job for a `with` block, and leave it at the end of the block.

    Rank 0 starts the store's server first, and stops it last. If the block raises an exception, all
    other ranks fail with it as the reason.

    Raises:
        LaunchError: The port is in use, rank 0 does not reply, or this rank is refused.
    """
    culprit = rendezvous.participant.rank
    is_first = culprit == 0
    server = StoreServer(_listen(rendezvous), rendezvous) if is_first else None
    reason = f"{rendezvous.participant.label} has ended"
    store: TcpStore | None = None
    try:
        here = rendezvous.listening_address or _HERE
        store = TcpStore(*connect_to_server(rendezvous, here if is_first else rendezvous.host))
        yield store
        reason = ""
    except BaseException as error:
        reason = reason_of(rendezvous.participant.label, error)
        found = getattr(error, "culprit", None)
        culprit = culprit if found is None else found
        raise
    finally:
        if store is not None:
            store.leave(reason, culprit)
        if server is not None:
            server.close(reason, culprit)


def _listen(rendezvous: RendezvousConfig) -> socket.socket:
    """Return a socket that listens at `rendezvous.port`.

    It listens at `rendezvous.listening_address` alone; if that is "", at all addresses of this
    host.

    Raises:
        LaunchError: The port is in use or cannot be used.
    """
    try:
        if rendezvous.listening_address:
            place = (rendezvous.listening_address, rendezvous.port)
            return socket.create_server(place, backlog=socket.SOMAXCONN)
        return _bind(rendezvous.port)
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        raise LaunchError(
            f"port {rendezvous.port} {'is in use' if is_taken else 'cannot be used'}"
            f" on rank 0's host {rendezvous.host}",
            "another process listens on it" if is_taken else str(error.strerror or error),
            "Set MASTER_PORT to a free port on every rank, or end the process that uses this port."
            " Under torchrun, smdist uses the port after --master-port: choose --master-port so"
            " that both ports are free",
            about="MASTER_PORT",
            kind="conflict",
        ) from error


def _bind(port: int) -> socket.socket:
    backlog = socket.SOMAXCONN
    if socket.has_dualstack_ipv6():
        try:
            family = socket.AF_INET6
            return socket.create_server(
                ("", port), family=family, backlog=backlog, dualstack_ipv6=True
            )
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return socket.create_server(("", port), backlog=backlog)


def _ended(what: str, why: str, culprit: int) -> LaunchError:
    hint = "Read the log of the rank that this error names; the first error in it is the cause"
    return LaunchError(what, why, hint, kind="lost", culprit=culprit)
