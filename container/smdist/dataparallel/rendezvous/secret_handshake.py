# SPDX-License-Identifier: Apache-2.0
"""Handshake of a connection in which both sides prove that they have the secret of the job.

The side that dials sends first; the table of frames is in `store_protocol`. Without a secret, both
sides only exchange greetings.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Final

from smdist.dataparallel.rendezvous.store_protocol import (
    HEAD_BYTES,
    NO_MATCH,
    NONCE_BYTES,
    ONE_SIDED,
    UNAUTHENTICATED_BYTES,
    Frame,
    FrameError,
    FrameKind,
    greeting,
    has_secret,
    is_proof,
    parse_frame,
    parse_head,
    proof,
)


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of the two sides. Each proof contains one, so that no side can return the other's."""

    dialer: str
    listener: str


RANK_AND_FIRST: Final = Roles("rank", "rank 0")


class DialerHandshake:
    """Frames that the dialling side sends, and checks of the replies.

    Attributes:
        greeting: The first frame to send.
    """

    def __init__(self, secret: bytes | None, roles: Roles) -> None:
        """Draw the random bytes of the greeting.

        Args:
            secret: Secret of the job; None if this side has none.
            roles: Names of the two sides.
        """
        self._secret = secret
        self._roles = roles
        self.greeting = greeting(os.urandom(NONCE_BYTES), secret)
        self._expected = b""

    def proof(self, theirs: Frame) -> Frame | None:
        """Return the frame to send after the other side's greeting; None if there is no secret.

        Raises:
            FrameError: Only one side has a secret, or the frame is no greeting.
        """
        _check_sides(theirs, self._secret)
        if self._secret is None:
            return None
        self._expected = proof(self._secret, self._roles.listener, self.greeting, theirs)
        mine = proof(self._secret, self._roles.dialer, self.greeting, theirs)
        return Frame(FrameKind.PROOF, value=mine)

    def check(self, reply: Frame) -> None:
        """Check the reply to the proof.

        Raises:
            FrameError: The other side does not have the same secret.
        """
        if not is_proof(reply, self._expected):
            raise FrameError(NO_MATCH)


async def authenticate_dialer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes | None,
    roles: Roles,
) -> None:
    """Let the side that has dialled prove the secret, and prove it to that side.

    Args:
        reader: Stream of the connection that was accepted.
        writer: Stream of the same connection.
        secret: Secret of the job; None if this side has none.
        roles: Names of the two sides.

    Raises:
        FrameError: The other side does not have the same secret.
        OSError: The connection failed.
        EOFError: The connection was closed.
    """
    theirs = await read_frame(reader, UNAUTHENTICATED_BYTES)
    has_secret(theirs)  # only a greeting gets a reply
    ours = greeting(os.urandom(NONCE_BYTES), secret)
    await write_frame(writer, ours)
    _check_sides(theirs, secret)
    if secret is None:
        return
    received = await read_frame(reader, UNAUTHENTICATED_BYTES)
    if not is_proof(received, proof(secret, roles.dialer, theirs, ours)):
        raise FrameError(NO_MATCH)
    mine = proof(secret, roles.listener, theirs, ours)
    await write_frame(writer, Frame(FrameKind.PROOF, value=mine))


def _check_sides(theirs: Frame, secret: bytes | None) -> None:
    if has_secret(theirs) != (secret is not None):
        raise FrameError(ONE_SIDED)


async def read_frame(reader: asyncio.StreamReader, max_bytes: int) -> Frame:
    """Return the next frame of a stream, whose value has at most `max_bytes`.

    Raises:
        FrameError: The bytes are not a valid frame.
        OSError: The connection failed.
        EOFError: The connection was closed.
    """
    head = parse_head(await reader.readexactly(HEAD_BYTES), max_bytes)
    return parse_frame(head, await reader.readexactly(head.body_bytes))


async def write_frame(writer: asyncio.StreamWriter, frame: Frame) -> None:
    """Send a frame; wait while the connection's buffer is full."""
    writer.write(frame.to_bytes())
    await writer.drain()
