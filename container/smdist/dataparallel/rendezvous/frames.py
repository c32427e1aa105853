# SPDX-License-Identifier: Apache-2.0
"""What goes over one connection to the meeting place, and how each side proves itself.

    kind   number     key bytes   value bytes   key    value
    u8     i64        u16         u32           UTF-8  any      big-endian

    rank                     rank 0
    GREETING  version, 32 random bytes
                             GREETING  version, 32 random bytes, has a secret?
    PROOF     HMAC(secret, "rank", both greetings)        only with a secret
                             PROOF     HMAC(secret, "rank 0", both greetings)
    JOIN      who it is
                             WELCOME   what rank 0 is called
    SET ADD GET              VALUE, or LATE: nobody has set it in time
    BYE

At any point REFUSED says why not. Proofs keep strangers out; they do not keep
a network that alters packets from altering them.
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
STRANGER_BYTES: Final = 4096  # of a value, until both sides know each other
VALUE_BYTES: Final = 1 << 24  # what all of 10,000 ranks say of themselves
_HEAD: Final = struct.Struct("!BqHI")
HEAD_BYTES: Final = _HEAD.size


class Kind(IntEnum):
    """What a frame says."""

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


_KINDS: Final = frozenset(Kind)


class FrameError(Exception):
    """What came is no frame that is expected here."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message.

    Attributes:
        number: The version, a count, or milliseconds of patience.
    """

    kind: Kind
    number: int = 0
    key: str = ""
    value: bytes = b""

    def to_bytes(self) -> bytes:
        """As it goes over the wire."""
        key = self.key.encode()
        return _HEAD.pack(self.kind, self.number, len(key), len(self.value)) + key + self.value


@dataclass(frozen=True, slots=True)
class Head:
    """What comes before a frame's key and value."""

    kind: Kind
    number: int
    key_bytes: int
    value_bytes: int

    @property
    def body_bytes(self) -> int:
        """What is still to be read."""
        return self.key_bytes + self.value_bytes


def parse_head(head: bytes, most_bytes: int) -> Head:
    """Read the first `HEAD_BYTES` of a frame.

    Args:
        most_bytes: The longest value to take.

    Raises:
        FrameError: The frame is too long, or none.
    """
    kind, number, key_bytes, value_bytes = _HEAD.unpack(head)
    if kind not in _KINDS:
        raise FrameError("what came is not smdist's protocol")
    if key_bytes > KEY_BYTES or value_bytes > most_bytes:
        raise FrameError(f"a frame of {key_bytes} + {value_bytes} bytes is too long here")
    return Head(Kind(kind), number, key_bytes, value_bytes)


def parse_frame(head: Head, body: bytes) -> Frame:
    """The frame of this head and the `head.body_bytes` after it.

    Raises:
        FrameError: Its key is no text.
    """
    try:
        key = body[: head.key_bytes].decode()
    except UnicodeDecodeError as error:
        raise FrameError("the key of a frame is no text") from error
    return Frame(head.kind, head.number, key, body[head.key_bytes :])


def expect(frame: Frame, *kinds: Kind) -> Frame:
    """The frame, if it is of one of these kinds.

    Raises:
        FrameError: It is another.
    """
    if frame.kind not in kinds:
        wanted = " or ".join(kind.name for kind in kinds)
        raise FrameError(f"{frame.kind.name} came where {wanted} is due")
    return frame


def greeting(nonce: bytes, secret: bytes | None) -> Frame:
    """The first frame of either side."""
    return Frame(Kind.GREETING, VERSION, MAGIC, nonce + (b"\0" if secret is None else b"\1"))


def has_secret(frame: Frame) -> bool:
    """Whether the other side, which greets so, has a secret.

    Raises:
        FrameError: It greets as nobody of this release does.
    """
    expect(frame, Kind.GREETING)
    if frame.key != MAGIC or len(frame.value) != NONCE_BYTES + 1:
        raise FrameError("the greeting is not smdist's")
    if frame.number != VERSION:
        raise FrameError(f"the other side speaks version {frame.number}, this one {VERSION}")
    return frame.value[-1] == 1


def proof(secret: bytes, role: str, of_rank: Frame, of_first: Frame) -> bytes:
    """What only a side that knows the secret can say after these two greetings."""
    said = role.encode() + of_rank.to_bytes() + of_first.to_bytes()
    return hmac.digest(secret, said, "sha256")


def proves(frame: Frame, expected: bytes) -> bool:
    """Whether the frame is this proof; takes as long for any other."""
    return frame.kind is Kind.PROOF and hmac.compare_digest(frame.value, expected)
