# SPDX-License-Identifier: Apache-2.0
"""An object as tensors of bytes, so that a small one is a single message.

    head   1 KiB, always: how long the body is, and its first bytes
    rest   what of the body did not fit in the head
    parts  the memory of large tensors, which is neither pickled nor copied

The body holds the sizes of the parts and the pickled object, with the bytes of small tensors
in it. What cannot be pickled becomes a letter too, one that says so: its receivers wait for it.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import DistError

HEAD_BYTES: Final = 1024
_PART_BYTES: Final = 8192  # a tensor of this length travels by itself
_LENGTH: Final = struct.Struct("<q")  # of the body; negative: of the reason why there is none
_COUNT: Final = struct.Struct("<I")
_Reference = tuple[int, tuple[Any, ...], int | bytes]
_KINDS: Final = (Tensor, nn.Parameter)


class UnsentError(DistError):
    """What a rank was to send could not be pickled, there."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What travels for one object, in this order.

    Attributes:
        failure: Why the object is not in it, or None.
    """

    head: Tensor
    rest: Tensor | None = None
    parts: Sequence[Tensor] = ()
    failure: BaseException | None = None

    @property
    def pieces(self) -> list[Tensor]:
        """All messages."""
        return [self.head, *([] if self.rest is None else [self.rest]), *self.parts]


class _About(NamedTuple):
    """What a tensor is, beside its memory; it travels as a plain tuple."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    requires_grad: bool
    is_parameter: bool
    is_cuda: bool


def pack(obj: object) -> Letter:
    """Make the letter of an object; a failure to pickle it is in the letter, not raised."""
    file, parts = io.BytesIO(), list[Tensor]()
    try:
        _Packer(file, parts).dump(obj)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".encode()[: HEAD_BYTES - _LENGTH.size]
        return Letter(_head(-len(text), text), failure=error)
    sizes = struct.pack(f"<{len(parts)}q", *(part.numel() for part in parts))
    body = _COUNT.pack(len(parts)) + sizes + file.getbuffer()
    room = HEAD_BYTES - _LENGTH.size
    rest = _bytes_tensor(body[room:]) if len(body) > room else None
    return Letter(_head(len(body), body[:room]), rest, parts)


def empty_head() -> Tensor:
    """Where a head is to arrive."""
    return torch.empty(HEAD_BYTES, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A letter at its receiver, all of it there and nothing of it read."""

    length: int
    body: bytearray
    parts: Sequence[Tensor] = ()

    def read(self, sender: str) -> Any:
        """The object.

        Args:
            sender: What an error calls the rank that wrote it.

        Raises:
            UnsentError: The sender could not pickle it.
        """
        if self.length < 0:
            raise UnsentError(
                f"{sender} could not send its object",
                self.body[: -self.length].decode(errors="replace").rstrip("."),
                "Send what can be pickled",
            )
        start = _COUNT.size + len(self.parts) * _LENGTH.size
        return _Unpacker(io.BytesIO(self.body[start : self.length]), self.parts).load()


def collect(head: Tensor, fetch: Callable[[Tensor], object]) -> Arrived:
    """All of a letter whose head has come; `fetch` fills a tensor with the next message."""
    data = _bytearray(head)
    length, body = int(_LENGTH.unpack_from(data)[0]), data[_LENGTH.size :]
    if length < 0:
        return Arrived(length, body)
    missing = length - len(body)
    if missing > 0:
        rest = bytearray(missing)
        fetch(torch.frombuffer(rest, dtype=torch.uint8))
        body += rest
    count = _COUNT.unpack_from(body)[0]
    sizes = struct.unpack_from(f"<{count}q", body, _COUNT.size)
    parts = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    for part in parts:
        fetch(part)
    return Arrived(length, body, parts)


class _Packer(pickle.Pickler):
    """Takes plain tensors out; each comes once, however often the object holds it."""

    def __init__(self, file: io.BytesIO, parts: list[Tensor]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._parts = parts
        self._known: dict[int, _Reference] = {}
        self._alive: list[Tensor] = []  # so that no other object takes an id

    def persistent_id(self, obj: Any) -> _Reference | None:
        """A tensor's number, what it is, and its bytes or the part that has them."""
        if type(obj) not in _KINDS or not _is_plain(obj):
            return None
        if id(obj) not in self._known:
            self._alive.append(obj)
            self._known[id(obj)] = (len(self._known), tuple(_about(obj)), self._memory(obj))
        return self._known[id(obj)]

    def _memory(self, tensor: Tensor) -> int | bytes:
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        flat = flat.view(torch.uint8)
        if flat.numel() < _PART_BYTES:
            return bytes(_bytearray(flat))
        self._parts.append(flat)
        return len(self._parts) - 1


class _Unpacker(pickle.Unpickler):
    """Puts tensors back."""

    def __init__(self, file: io.BytesIO, parts: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._parts = parts
        self._made: dict[int, Tensor] = {}

    def persistent_load(self, pid: Any) -> Tensor:
        """The tensor of this number; the same object each time."""
        number, about, memory = pid
        if number not in self._made:
            flat = self._parts[memory] if isinstance(memory, int) else _bytes_tensor(memory)
            self._made[number] = _tensor(flat, _About(*about))
        return self._made[number]


def _is_plain(tensor: Tensor) -> bool:
    """Whether its memory and an _About say all of it; others are pickled as torch does."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not tensor.is_quantized
        and not tensor.is_nested
        and not getattr(tensor, "__dict__", None)
    )


def _about(tensor: Tensor) -> _About:
    return _About(
        dtype=tensor.dtype,
        shape=tuple(tensor.shape),
        requires_grad=tensor.requires_grad and tensor.is_leaf,
        is_parameter=isinstance(tensor, nn.Parameter),
        is_cuda=tensor.is_cuda,
    )


def _tensor(flat: Tensor, about: _About) -> Tensor:
    made = flat.view(about.dtype).reshape(about.shape)
    if about.is_cuda and torch.cuda.is_available():
        made = made.cuda()
    if about.is_parameter:
        return nn.Parameter(made, requires_grad=about.requires_grad)
    return made.requires_grad_(about.requires_grad)


def _head(length: int, start: bytes) -> Tensor:
    return _bytes_tensor((_LENGTH.pack(length) + start).ljust(HEAD_BYTES, b"\0"))


def _bytes_tensor(data: bytes) -> Tensor:
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _bytearray(flat: Tensor) -> bytearray:
    """A copy of its memory."""
    data = bytearray(flat.numel())
    if data:
        torch.frombuffer(data, dtype=torch.uint8).copy_(flat)
    return data
