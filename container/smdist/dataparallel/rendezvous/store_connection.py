# SPDX-License-Identifier: Apache-2.0
"""Connection of a rank to the store server, with a deadline on every operation."""

from __future__ import annotations

import os
import socket
import sys
import time

from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.rendezvous.participants import Meeting, tellings, waiting
from smdist.dataparallel.rendezvous.store_protocol import (
    HEAD_BYTES,
    NONCE_BYTES,
    STRANGER_BYTES,
    VALUE_BYTES,
    Frame,
    FrameError,
    FrameKind,
    expect,
    greeting,
    has_secret,
    parse_frame,
    parse_head,
    proof,
    proves,
)

_HANDSHAKE_SECONDS = 30.0
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5
# only this many ranks log that they wait for rank 0, to keep the log of a large job short
_TELLERS = 8


class StoreConnection:
    """Connection that sends and receives frames, for one thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, frame: Frame, patience_seconds: float, *, most_bytes: int = VALUE_BYTES) -> Frame:
        """Send a frame and return the reply.

        Raises:
            OSError: No reply came in time, or the connection was closed.
            FrameError: The reply is not a valid frame.
        """
        self.send(frame, patience_seconds)
        end = time.monotonic() + patience_seconds
        head = parse_head(self._receive(HEAD_BYTES, end), most_bytes)
        return parse_frame(head, self._receive(head.body_bytes, end))

    def send(self, frame: Frame, patience_seconds: float) -> None:
        """Send a frame that has no reply."""
        self._connection.settimeout(patience_seconds)
        self._connection.sendall(frame.to_bytes())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _receive(self, count: int, end: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer in time")
            self._connection.settimeout(left)
            part = self._connection.recv(count - len(data))
            if not part:
                raise ConnectionResetError("the other side has hung up")
            data += part
        return bytes(data)


def dial(meeting: Meeting, host: str) -> tuple[StoreConnection, str]:
    """Connect to the store server; retry until it listens.

    Returns:
        The connection, and rank 0's name in messages.

    Raises:
        LaunchError: The server did not listen in time, or it refuses this rank.
    """
    began = time.monotonic()
    end = began + meeting.patience_seconds
    pause = _FIRST_PAUSE_SECONDS
    times = tellings(meeting.quiet_seconds)
    told = next(times)
    while True:
        try:
            left = max(end - time.monotonic(), pause)
            return _enter(meeting, host, min(left, _HANDSHAKE_SECONDS))
        except OSError as error:
            if time.monotonic() + pause > end:
                raise _unreachable(meeting, error) from error
        except FrameError as error:
            raise _refused(meeting, str(error)) from error
        waited = time.monotonic() - began
        if waited > told and meeting.participant.rank < _TELLERS:
            sys.stderr.write(waiting([0], meeting, round(waited)))
            told = next(each for each in times if each > waited)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _enter(meeting: Meeting, host: str, patience_seconds: float) -> tuple[StoreConnection, str]:
    link = StoreConnection(socket.create_connection((host, meeting.port), timeout=patience_seconds))
    try:
        end = time.monotonic() + patience_seconds
        _prove(link, meeting, end)
        said = _ask(link, meeting.participant.to_frame(), end)
        if said.kind is FrameKind.REFUSED:
            raise FrameError(said.value.decode(errors="replace"))
        return link, expect(said, FrameKind.WELCOME).value.decode(errors="replace")
    except BaseException:
        link.close()
        raise


def _prove(link: StoreConnection, meeting: Meeting, end: float) -> None:
    secret = meeting.secret
    ours = greeting(os.urandom(NONCE_BYTES), secret)
    theirs = _ask(link, ours, end)
    if has_secret(theirs) != (secret is not None):
        raise FrameError("a secret file is set there or here, not on both sides")
    if secret is None:
        return
    said = _ask(link, Frame(FrameKind.PROOF, value=proof(secret, "rank", ours, theirs)), end)
    if not proves(said, proof(secret, "rank 0", ours, theirs)):
        raise FrameError("it has another secret")


def _ask(link: StoreConnection, frame: Frame, end: float) -> Frame:
    left = max(end - time.monotonic(), 0.001)
    return link.ask(frame, left, most_bytes=STRANGER_BYTES)


def _unreachable(meeting: Meeting, error: OSError) -> LaunchError:
    return LaunchError(
        f"rank 0 does not answer at {meeting.host}:{meeting.port}"
        f" within {meeting.patience_seconds:g} s",
        f"the last try said: {error.strerror or error}",
        "Look into rank 0's log; MASTER_ADDR must name its host on all ranks, MASTER_PORT a"
        " port that the others reach; or give a longer start_timeout_seconds",
    )


def _refused(meeting: Meeting, why: str) -> LaunchError:
    return LaunchError(
        f"{meeting.participant.label} cannot join the job that meets at"
        f" {meeting.host}:{meeting.port}",
        why,
        "Use the same image and the same SMDIST_SECRET_FILE on every host, and another"
        " MASTER_PORT for each job",
    )
