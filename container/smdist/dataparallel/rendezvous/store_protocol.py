# SPDX-License-Identifier: Apache-2.0
"""Protocol of a connection to the store server: frames, and the proof of the shared secret.

    kind   number     key bytes   value bytes   key    value
    u8     i64        u16         u32           UTF-8  any      big-endian

    rank                     rank 0
    GREETING  version, 32 random bytes
                             GREETING  version, 32 random bytes, has a secret?
    PROOF     HMAC(secret, "rank", both greetings)        only with a secret
                             PROOF     HMAC(secret, "rank 0", both greetings)
    JOIN      description of the rank
                             WELCOME   rank 0's name
    SET ADD GET              VALUE, or LATE: no rank has set the key in time
    BYE

Either side may send REFUSED with a reason at any time. The proofs keep unknown processes
out; they do not protect against a network that alters packets.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

VERSION: Final = 1
MAGIC: Final = "smdist"
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
KEY_BYTES: Final = 256
STRANGER_BYTES: Final = 4096  # limit of a value until both sides are authenticated
VALUE_BYTES: Final = 1 << 24  # enough for the descriptions of 10,000 ranks
_HEAD: Final = struct.Struct("!BqHI")
HEAD_BYTES: Final = _HEAD.size


class FrameKind(IntEnum):
    """Kinds of frames."""

    GREETING = 1
    PROOF = 2
    JOIN = 3
    WELCOME = 4
    SET = 5
    ADD = 6
    GET = 7
    VALUE = 8
    LATE = 9
    BYE = 10
    REFUSED = 11


_KINDS: Final = frozenset(FrameKind)


class FrameError(Exception):
    """A received frame is invalid or not expected here."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Message of the protocol.

    Attributes:
        number: The protocol version, a count, or a timeout in milliseconds.
    """

    kind: FrameKind
    number: int = 0
    key: str = ""
    value: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the frame's bytes on the wire."""
        key = self.key.encode()
        return _HEAD.pack(self.kind, self.number, len(key), len(self.value)) + key + self.value


@dataclass(frozen=True, slots=True)
class Head:
    """Fixed-size header of a frame."""

    kind: FrameKind
    number: int
    key_bytes: int
    value_bytes: int

    @property
    def body_bytes(self) -> int:
        """Number of bytes that follow the header."""
        return self.key_bytes + self.value_bytes


def parse_head(head: bytes, most_bytes: int) -> Head:
    """Parse the first `HEAD_BYTES` of a frame.

    Args:
        most_bytes: The longest value to accept.

    Raises:
        FrameError: The frame is too long, or not of this protocol.
    """
    kind, number, key_bytes, value_bytes = _HEAD.unpack(head)
    if kind not in _KINDS:
        raise FrameError("what came is not smdist's protocol")
    if key_bytes > KEY_BYTES or value_bytes > most_bytes:
        raise FrameError(f"a frame of {key_bytes} + {value_bytes} bytes is too long here")
    return Head(FrameKind(kind), number, key_bytes, value_bytes)


def parse_frame(head: Head, body: bytes) -> Frame:
    """Return the frame with this header and the `head.body_bytes` that follow it.

    Raises:
        FrameError: The key is not UTF-8.
    """
    try:
        key = body[: head.key_bytes].decode()
    except UnicodeDecodeError as error:
        raise FrameError("the key of a frame is no text") from error
    return Frame(head.kind, head.number, key, body[head.key_bytes :])


def expect(frame: Frame, *kinds: FrameKind) -> Frame:
    """Return the frame if it is of one of these kinds.

    Raises:
        FrameError: The frame is of another kind.
    """
    if frame.kind not in kinds:
        wanted = " or ".join(kind.name for kind in kinds)
        raise FrameError(f"{frame.kind.name} came where {wanted} is due")
    return frame


def greeting(nonce: bytes, secret: bytes | None) -> Frame:
    """Return the first frame that each side sends."""
    return Frame(FrameKind.GREETING, VERSION, MAGIC, nonce + (b"\0" if secret is None else b"\1"))


def has_secret(frame: Frame) -> bool:
    """Return whether the sender of this greeting has a secret.

    Raises:
        FrameError: The greeting is not of this protocol or of another version.
    """
    expect(frame, FrameKind.GREETING)
    if frame.key != MAGIC or len(frame.value) != NONCE_BYTES + 1:
        raise FrameError("the greeting is not smdist's")
    if frame.number != VERSION:
        raise FrameError(f"the other side speaks version {frame.number}, this one {VERSION}")
    return frame.value[-1] == 1


def proof(secret: bytes, role: str, of_rank: Frame, of_first: Frame) -> bytes:
    """Return the proof that only a process with the secret can compute from these two greetings."""
    said = role.encode() + of_rank.to_bytes() + of_first.to_bytes()
    return hmac.digest(secret, said, "sha256")


def proves(frame: Frame, expected: bytes) -> bool:
    """Tell whether the frame holds the expected proof, in constant time."""
    return frame.kind is FrameKind.PROOF and hmac.compare_digest(frame.value, expected)
