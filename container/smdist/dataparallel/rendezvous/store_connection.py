# SPDX-License-Identifier: Apache-2.0
"""Connection of a rank to rank 0's store server, with a time limit for every operation."""

from __future__ import annotations

import socket
import sys
import time

from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.rendezvous.participants import (
    RendezvousConfig,
    report_times,
    waiting_message,
)
from smdist.dataparallel.rendezvous.secret_handshake import RANK_AND_FIRST, DialerHandshake
from smdist.dataparallel.rendezvous.store_protocol import (
    HEAD_BYTES,
    UNAUTHENTICATED_BYTES,
    VALUE_BYTES,
    Frame,
    FrameError,
    FrameKind,
    parse_frame,
    parse_head,
    require_kind,
)

_HANDSHAKE_SECONDS = 30.0
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5
# only the ranks below this number log that they wait for rank 0: a large job has a short log
_REPORTERS = 8


class StoreConnection:
    """TCP connection from this rank to rank 0's store server, for requests and their replies.

    Thread safety: only one thread may use it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(
        self, frame: Frame, timeout_seconds: float, *, max_bytes: int = VALUE_BYTES
    ) -> Frame:
        """Send a frame and return the reply, whose value has at most `max_bytes`.

        Raises:
            OSError: No reply was received in `timeout_seconds`, or the connection was closed.
            FrameError: The reply is not a valid frame.
        """
        self.send(frame, timeout_seconds)
        end = time.monotonic() + timeout_seconds
        head = parse_head(self._receive(HEAD_BYTES, end), max_bytes)
        return parse_frame(head, self._receive(head.body_bytes, end))

    def send(self, frame: Frame, timeout_seconds: float) -> None:
        """Send a frame without waiting for a reply.

        Raises:
            OSError: The frame was not sent in `timeout_seconds`, or the connection was closed.
        """
        self._connection.settimeout(timeout_seconds)
        self._connection.sendall(frame.to_bytes())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _receive(self, count: int, end: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("rank 0's store server did not reply in time")
            self._connection.settimeout(left)
            part = self._connection.recv(count - len(data))
            if not part:
                raise ConnectionResetError("rank 0's store server has closed the connection")
            data += part
        return bytes(data)


def connect_to_server(rendezvous: RendezvousConfig, host: str) -> tuple[StoreConnection, str]:
    """Connect to rank 0's store server and join the job, retrying until the server listens.

    Args:
        rendezvous: The server's port, the time limit, and the description of this rank.
        host: Address at which this rank reaches the server.

    Returns:
        The connection, and rank 0's name for messages, such as "rank 0 on algo-1".

    Raises:
        LaunchError: The server did not reply in time, or it refused this rank.
    """
    began = time.monotonic()
    end = began + rendezvous.timeout_seconds
    pause = _FIRST_PAUSE_SECONDS
    times = report_times(rendezvous.report_seconds)
    reported = next(times)
    while True:
        try:
            left = max(end - time.monotonic(), pause)
            return _join(rendezvous, host, min(left, _HANDSHAKE_SECONDS))
        except OSError as error:
            if time.monotonic() + pause > end:
                raise _unreachable(rendezvous, error) from error
        except FrameError as error:
            raise _refused(rendezvous, str(error)) from error
        waited = time.monotonic() - began
        if waited > reported and rendezvous.participant.rank < _REPORTERS:
            sys.stderr.write(waiting_message([0], rendezvous, round(waited)))
            reported = next(each for each in times if each > waited)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _join(
    rendezvous: RendezvousConfig, host: str, timeout_seconds: float
) -> tuple[StoreConnection, str]:
    link = StoreConnection(
        socket.create_connection((host, rendezvous.port), timeout=timeout_seconds)
    )
    try:
        end = time.monotonic() + timeout_seconds
        handshake = DialerHandshake(rendezvous.secret, RANK_AND_FIRST)
        proof = handshake.proof(_request(link, handshake.greeting, end))
        if proof is not None:
            handshake.check(_request(link, proof, end))
        reply = _request(link, rendezvous.participant.to_frame(), end)
        if reply.kind is FrameKind.REFUSED:
            raise FrameError(reply.value.decode(errors="replace"))
        return link, require_kind(reply, FrameKind.WELCOME).value.decode(errors="replace")
    except BaseException:
        link.close()
        raise


def _request(link: StoreConnection, frame: Frame, end: float) -> Frame:
    left = max(end - time.monotonic(), 0.001)
    return link.request(frame, left, max_bytes=UNAUTHENTICATED_BYTES)


def _unreachable(rendezvous: RendezvousConfig, error: OSError) -> LaunchError:
    return LaunchError(
        f"rank 0 does not reply at {rendezvous.host}:{rendezvous.port}"
        f" within {rendezvous.timeout_seconds:g} s",
        f"the last attempt failed: {error.strerror or error}",
        "Read rank 0's log for the reason why it did not start. On all ranks MASTER_ADDR must"
        " name rank 0's host, and MASTER_PORT a port of rank 0's host that all ranks can reach. If"
        " rank 0 only starts slowly, raise start_timeout_seconds",
        about="MASTER_ADDR",
        kind="timeout",
        culprit=0,
    )


def _refused(rendezvous: RendezvousConfig, why: str) -> LaunchError:
    return LaunchError(
        f"{rendezvous.participant.label} cannot join the job whose rank 0 listens at"
        f" {rendezvous.host}:{rendezvous.port}",
        why,
        "Use the same image and the same SMDIST_SECRET_FILE on every host, and a different"
        " MASTER_PORT for each job",
        about="MASTER_PORT",
        kind="refused",
    )
