# SPDX-License-Identifier: Apache-2.0
"""Protocol of a connection to the store server: frames, and proofs of the shared secret.

Layout of a frame, with big-endian integers:

    kind   number     length of key   length of value   key    value
    u8     i64        u16             u32               UTF-8  any bytes

Order of the frames. Rank 0 answers every frame of a rank except LEAVE:

    a rank sends                                  rank 0 answers
    GREETING  its version, 32 random bytes,       GREETING  its own version, random bytes
              whether it has a secret                       and whether it has a secret
    PROOF     HMAC(secret, "rank" + both          PROOF     HMAC(secret, "rank 0" + both
              greetings)                                    greetings)
    JOIN      description of the rank             WELCOME   rank 0's name
    SET       key, value                          VALUE     empty
    ADD       key, number to add                  VALUE     the new sum
    GET       key, timeout                        VALUE     the value; or TIMED_OUT
    DELETE    key                                 VALUE     empty
    LEAVE     reason of a failure, or empty;
              number of the rank that caused it

Both sides send PROOF only if the job has a secret. Rank 0 may answer any frame with REFUSED and a
reason, and a GET with REFUSED, the reason of a failure, and the number of the rank that caused it.
The proofs exclude processes that do not have the secret. They do not protect against a network that
alters packets.
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
UNAUTHENTICATED_BYTES: Final = 4096  # limit of a value before the rank has joined
VALUE_BYTES: Final = 1 << 24  # limit of a value; enough for the descriptions of 10,000 ranks
STORE_BYTES: Final = 1 << 26  # limit of all keys and values together
# reasons of a refusal: a secret on one side only, different secrets
ONE_SIDED: Final = "only one side has a secret: SMDIST_SECRET_FILE is not set on all ranks"
NO_MATCH: Final = "its secret differs from that of the other side"
_HEAD: Final = struct.Struct("!BqHI")
HEAD_BYTES: Final = _HEAD.size


class FrameKind(IntEnum):
    """Kinds of frames; the value of each is the number that stands for it in a frame."""

    GREETING = 1
    PROOF = 2
    JOIN = 3
    WELCOME = 4
    SET = 5
    ADD = 6
    GET = 7
    VALUE = 8
    TIMED_OUT = 9
    LEAVE = 10
    REFUSED = 11
    DELETE = 12


_KINDS: Final = frozenset(FrameKind)


class FrameError(Exception):
    """Raised when a received frame is invalid, or of a kind that is not allowed at this point."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of the store's protocol.

    Attributes:
        kind: Kind of the message.
        number: Protocol version of GREETING, count of ADD, timeout of GET in milliseconds; 0
            for the other kinds.
        key: Key of SET, ADD, GET and DELETE.
        value: Content of the message; its format depends on the kind.
    """

    kind: FrameKind
    number: int = 0
    key: str = ""
    value: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the frame as the bytes to send: header, key, value."""
        key = self.key.encode()
        return _HEAD.pack(self.kind, self.number, len(key), len(self.value)) + key + self.value


@dataclass(frozen=True, slots=True)
class Head:
    """Header of a frame, with the lengths of its key and value in bytes."""

    kind: FrameKind
    number: int
    key_bytes: int
    value_bytes: int

    @property
    def body_bytes(self) -> int:
        """Number of bytes that follow the header: key and value."""
        return self.key_bytes + self.value_bytes


def parse_head(head: bytes, max_bytes: int) -> Head:
    """Parse the header of a frame.

    Args:
        head: The first `HEAD_BYTES` bytes of the frame.
        max_bytes: Length of the longest value to accept.

    Raises:
        FrameError: The frame is too long, or not of this protocol.
    """
    kind, number, key_bytes, value_bytes = _HEAD.unpack(head)
    if kind not in _KINDS:
        raise FrameError("the received bytes are not a frame of smdist's store")
    if key_bytes > KEY_BYTES or value_bytes > max_bytes:
        raise FrameError(
            f"a received message is too long: its key has {key_bytes} bytes, its value"
            f" {value_bytes}. At most {KEY_BYTES} and {max_bytes} bytes are allowed. Perhaps the"
            " sender is not a rank of this job"
        )
    return Head(FrameKind(kind), number, key_bytes, value_bytes)


def parse_frame(head: Head, body: bytes) -> Frame:
    """Return the frame that consists of this header and the bytes after it.

    Args:
        head: Header of the frame.
        body: The `head.body_bytes` bytes that follow the header: key and value.

    Raises:
        FrameError: The key is not UTF-8.
    """
    try:
        key = body[: head.key_bytes].decode()
    except UnicodeDecodeError as error:
        raise FrameError(
            "the key in a received message is not valid UTF-8. Perhaps the sender is not a rank of"
            " this job"
        ) from error
    return Frame(head.kind, head.number, key, body[head.key_bytes :])


def require_kind(frame: Frame, *kinds: FrameKind) -> Frame:
    """Return the frame if it is of one of these kinds.

    Raises:
        FrameError: The frame is of another kind.
    """
    if frame.kind not in kinds:
        wanted = " or ".join(kind.name for kind in kinds)
        raise FrameError(f"a frame {frame.kind.name} was received instead of {wanted}")
    return frame


def greeting(nonce: bytes, secret: bytes | None) -> Frame:
    """Return the GREETING frame, which each side sends first.

    It contains random bytes, `nonce`, and a flag for whether the sender has a secret, not the
    secret itself.
    """
    return Frame(FrameKind.GREETING, VERSION, MAGIC, nonce + (b"\0" if secret is None else b"\1"))


def has_secret(frame: Frame) -> bool:
    """Return True if the sender of this greeting has a secret.

    Raises:
        FrameError: The frame is not a greeting of this protocol and version.
    """
    require_kind(frame, FrameKind.GREETING)
    if frame.key != MAGIC or len(frame.value) != NONCE_BYTES + 1:
        raise FrameError(
            "the other side does not use the protocol of smdist's store. Perhaps another program"
            " uses this port"
        )
    if frame.number != VERSION:
        raise FrameError(
            f"the other side has version {frame.number} of the store's protocol, and this side"
            f" has version {VERSION}"
        )
    return frame.value[-1] == 1


def proof(secret: bytes, role: str, of_rank: Frame, of_first: Frame) -> bytes:
    """Return the HMAC over both greetings, which proves that its sender has the secret.

    Args:
        secret: The secret of the job.
        role: Role of the sender, "rank" or "rank 0".
        of_rank: The greeting that the joining rank has sent.
        of_first: The greeting that rank 0 has sent.
    """
    text = role.encode() + of_rank.to_bytes() + of_first.to_bytes()
    return hmac.digest(secret, text, "sha256")


def is_proof(frame: Frame, expected: bytes) -> bool:
    """Return True if the frame contains the expected proof; compares in constant time."""
    return frame.kind is FrameKind.PROOF and hmac.compare_digest(frame.value, expected)
