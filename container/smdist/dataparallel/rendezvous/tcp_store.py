# SPDX-License-Identifier: Apache-2.0
"""The store of jobs without torch: rank 0 serves it, all ranks dial it.

It lives until the engines of all ranks are connected. Nobody waits without an
end: a rank that never comes is named, one that goes ends the wait of all.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.rendezvous.frames import Frame, FrameError, Kind, expect
from smdist.dataparallel.rendezvous.goodbye import reason_of
from smdist.dataparallel.rendezvous.link import Link, dial
from smdist.dataparallel.rendezvous.meeting import Meeting
from smdist.dataparallel.rendezvous.server import MeetingPlace

_ANSWER_SECONDS = 30.0  # beyond what rank 0 itself waits for
_HERE = "127.0.0.1"  # of rank 0, whatever others call its host


class TcpStore:
    """One rank's view of the meeting place; for one thread."""

    def __init__(self, link: Link, first: str) -> None:
        self._link = link
        self._first = first

    def set(self, key: str, value: bytes) -> None:
        """Leave a word.

        Raises:
            LaunchError: A rank has gone.
        """
        self._ask(Frame(Kind.SET, 0, key, value))

    def get(self, key: str, patience_seconds: float) -> bytes:
        """Wait for a word.

        Raises:
            TimeoutError: Nobody has left it by then.
            LaunchError: A rank has gone.
        """
        answer = self._ask(Frame(Kind.GET, int(patience_seconds * 1000), key), patience_seconds)
        if answer.kind is Kind.LATE:
            raise TimeoutError(f"nobody has set {key!r} within {patience_seconds:g} s")
        return answer.value

    def add(self, key: str, count: int) -> int:
        """Count under this key.

        Raises:
            LaunchError: A rank has gone.
        """
        return int(self._ask(Frame(Kind.ADD, count, key)).value)

    def leave(self, reason: str = "") -> None:
        """Say goodbye; with a reason, no other rank waits any longer."""
        with suppress(OSError):
            self._link.send(Frame(Kind.BYE, value=reason.encode()), _ANSWER_SECONDS)
        self._link.close()

    def _ask(self, frame: Frame, patience_seconds: float = 0) -> Frame:
        try:
            answer = self._link.ask(frame, patience_seconds + _ANSWER_SECONDS)
            expect(answer, Kind.VALUE, Kind.LATE, Kind.REFUSED)
        except (OSError, FrameError) as error:
            raise _ended(f"{self._first} has gone before all ranks had met", str(error)) from error
        if answer.kind is Kind.REFUSED:
            why = "one rank that ends before all have met ends the start of the job"
            raise _ended(answer.value.decode(errors="replace"), why)
        return answer


@contextmanager
def open_store(meeting: Meeting) -> Iterator[TcpStore]:
    """The store, for as long as ranks meet; rank 0 leaves when all others have.

    Raises:
        LaunchError: The port is in use, rank 0 does not answer, or a rank is refused.
    """
    is_first = meeting.guest.rank == 0
    place = MeetingPlace(_listen(meeting), meeting) if is_first else None
    reason = f"{meeting.guest.label} has ended"
    store: TcpStore | None = None
    try:
        store = TcpStore(*dial(meeting, _HERE if is_first else meeting.host))
        yield store
        reason = ""
    except BaseException as error:
        reason = reason_of(meeting.guest.label, error)
        raise
    finally:
        if store is not None:
            store.leave(reason)
        if place is not None:
            place.close(reason)


def _listen(meeting: Meeting) -> socket.socket:
    """On all addresses of this host, and again at once after a restart."""
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
    mend = "Read the log of the rank that is named for the first error"
    return LaunchError(what, why, mend)
