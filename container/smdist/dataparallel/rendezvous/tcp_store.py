# SPDX-License-Identifier: Apache-2.0
"""TCP store for jobs without torch: rank 0 serves it, all ranks connect to it.

The store lives until the engines of all ranks are connected. No rank waits forever: a rank
that never arrives is named, and a rank that is lost ends the wait of all.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.rendezvous.engine_shutdown import reason_of
from smdist.dataparallel.rendezvous.participants import Meeting
from smdist.dataparallel.rendezvous.store_connection import StoreConnection, dial
from smdist.dataparallel.rendezvous.store_protocol import Frame, FrameError, FrameKind, expect
from smdist.dataparallel.rendezvous.store_server import MeetingPlace

_ANSWER_SECONDS = 30.0  # for the reply, in addition to the time that rank 0 itself waits
_HERE = "127.0.0.1"  # rank 0 reaches its own server here, whatever its host is called


class TcpStore:
    """Client of the store server, for one thread."""

    def __init__(self, link: StoreConnection, first: str) -> None:
        self._link = link
        self._first = first

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key.

        Raises:
            LaunchError: A rank was lost.
        """
        self._ask(Frame(FrameKind.SET, 0, key, value))

    def get(self, key: str, patience_seconds: float) -> bytes:
        """Wait for the value of a key and return it.

        Raises:
            TimeoutError: No rank has set the key in time.
            LaunchError: A rank was lost.
        """
        answer = self._ask(
            Frame(FrameKind.GET, int(patience_seconds * 1000), key), patience_seconds
        )
        if answer.kind is FrameKind.LATE:
            raise TimeoutError(f"nobody has set {key!r} within {patience_seconds:g} s")
        return answer.value

    def add(self, key: str, count: int) -> int:
        """Add to the counter under this key and return the sum.

        Raises:
            LaunchError: A rank was lost.
        """
        return int(self._ask(Frame(FrameKind.ADD, count, key)).value)

    def leave(self, reason: str = "") -> None:
        """Close the connection; with a reason, fail the wait of all other ranks."""
        with suppress(OSError):
            self._link.send(Frame(FrameKind.BYE, value=reason.encode()), _ANSWER_SECONDS)
        self._link.close()

    def _ask(self, frame: Frame, patience_seconds: float = 0) -> Frame:
        try:
            answer = self._link.ask(frame, patience_seconds + _ANSWER_SECONDS)
            expect(answer, FrameKind.VALUE, FrameKind.LATE, FrameKind.REFUSED)
        except (OSError, FrameError) as error:
            raise _ended(f"{self._first} has gone before all ranks had met", str(error)) from error
        if answer.kind is FrameKind.REFUSED:
            why = "one rank that ends before all have met ends the start of the job"
            raise _ended(answer.value.decode(errors="replace"), why)
        return answer


@contextmanager
def open_store(meeting: Meeting) -> Iterator[TcpStore]:
    """Open the store for the rendezvous; rank 0 closes it after all other ranks have left.

    Raises:
        LaunchError: The port is in use, rank 0 does not answer, or a rank is refused.
    """
    is_first = meeting.participant.rank == 0
    place = MeetingPlace(_listen(meeting), meeting) if is_first else None
    reason = f"{meeting.participant.label} has ended"
    store: TcpStore | None = None
    try:
        store = TcpStore(*dial(meeting, _HERE if is_first else meeting.host))
        yield store
        reason = ""
    except BaseException as error:
        reason = reason_of(meeting.participant.label, error)
        raise
    finally:
        if store is not None:
            store.leave(reason)
        if place is not None:
            place.close(reason)


def _listen(meeting: Meeting) -> socket.socket:
    """Listen at the port on all addresses of this host, with SO_REUSEADDR."""
    try:
        return _bind(meeting.port)
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        raise LaunchError(
            f"port {meeting.port} {'is in use' if is_taken else 'cannot be listened at'}"
            f" on rank 0's host {meeting.host}",
            "a process of another job, or one left over, listens there"
            if is_taken
            else str(error.strerror or error),
            "Set another free port in MASTER_PORT on every rank (for torchrun, --master-port: ranks"
            " without torch's store meet at the port after it), or end that process",
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


def _ended(what: str, why: str) -> LaunchError:
    hint = "Read the log of the rank that is named for the first error"
    return LaunchError(what, why, hint)
