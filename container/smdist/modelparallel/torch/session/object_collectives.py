# SPDX-License-Identifier: Apache-2.0
"""Collectives, sends and receives of Python objects over a group that supports CPU tensors.

All sends and receives of objects have the same tag. So they need a process group that nothing else
uses for sends. Broadcasts and gathers of objects may use any group.

An object is pickled and sent as tensors of bytes, in these messages:

    head   length of the body, and the first bytes of the body; always 1 KiB
    rest   further bytes of the body; not sent if the body fits in the head
    parts  bytes of large tensors, one message for each tensor; they are not pickled

The body contains the sizes of the parts and the pickled object, including the bytes of small
tensors. If an object cannot be pickled, the text of the error is sent in place of the object, so
that receivers do not wait forever.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import BarrierOptions

from sagemaker_dist.errors import DistError
from smdist.modelparallel.torch.accelerator import current_device

HEAD_BYTES: Final = 1024
_PART_BYTES: Final = 8192  # a tensor of at least this many bytes is a part of its own
_LENGTH: Final = struct.Struct("<q")  # bytes of the body; negative: minus bytes of an error text
_COUNT: Final = struct.Struct("<I")
_Reference = tuple[int, tuple[Any, ...], int | bytes]
_KINDS: Final = (Tensor, nn.Parameter)


class UnsentError(DistError):
    """Error of a receiver whose sender could not pickle the object.

    Attributes:
        sender: Name of the sending rank, such as "rank 1".
    """

    default_kind = "not_picklable"

    own_fields = ("sender",)
    sender: str = ""


@dataclass(frozen=True, slots=True)
class PackedObject:
    """Pickled object as tensors of bytes, to be sent in the order head, rest, parts.

    Attributes:
        head: First message, of HEAD_BYTES: length of the pickled body, and its first bytes.
        rest: Further bytes of the body; None if there are none.
        parts: Memory of each large tensor in the object, as a tensor of bytes.
        failure: Error of pickle, whose text is sent in place of the object; None if there is none.
    """

    head: Tensor
    rest: Tensor | None = None
    parts: Sequence[Tensor] = ()
    failure: BaseException | None = None

    @property
    def pieces(self) -> list[Tensor]:
        """Messages in the order in which they are sent."""
        return [self.head, *([] if self.rest is None else [self.rest]), *self.parts]


class _About(NamedTuple):
    """Properties of a tensor that are sent together with its bytes.

    Attributes:
        dtype: Type of the elements.
        shape: Shape of the tensor.
        requires_grad: True for a leaf tensor that requires a gradient.
        is_parameter: True for an nn.Parameter.
        on_accelerator: True if the tensor is on an accelerator, such as a GPU. A receiver that has
            one moves the tensor to its own current device.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    requires_grad: bool
    is_parameter: bool
    on_accelerator: bool


def pack(obj: object) -> PackedObject:
    """Pickle an object, and return the tensors of bytes in which it is sent to other ranks.

    If pickling fails, the error's text is sent in place of the object.
    """
    file, parts = io.BytesIO(), list[Tensor]()
    try:
        _Packer(file, parts).dump(obj)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".encode()[: HEAD_BYTES - _LENGTH.size]
        return PackedObject(_head(-len(text), text), failure=error)
    sizes = struct.pack(f"<{len(parts)}q", *(part.numel() for part in parts))
    body = _COUNT.pack(len(parts)) + sizes + file.getbuffer()
    room = HEAD_BYTES - _LENGTH.size
    rest = _bytes_tensor(body[room:]) if len(body) > room else None
    return PackedObject(_head(len(body), body[:room]), rest, parts)


def empty_head() -> Tensor:
    """Return a buffer to receive the first message of an object, which is called its head."""
    return torch.empty(HEAD_BYTES, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class ReceivedObject:
    """Object that was received completely, as bytes that are not yet unpickled.

    Attributes:
        length: Number of bytes of the body. A negative number means that the sender failed: then
            the body begins with the error's text, which has -length bytes.
        body: Sizes of the parts, then the pickled object; or the text of the sender's error.
        parts: Memory of each large tensor in the object, as a tensor of bytes.
    """

    length: int
    body: bytearray
    parts: Sequence[Tensor] = ()

    def read(self, sender: str) -> Any:
        """Unpickle the object and return it.

        Args:
            sender: Name of the sending rank, for the error's text: "rank 1".

        Raises:
            UnsentError: The sender could not pickle the object.
        """
        if self.length < 0:
            raise UnsentError(
                f"{sender} could not send its object",
                self.body[: -self.length].decode(errors="replace").rstrip("."),
                "Send an object that pickle supports",
                sender=sender,
            )
        start = _COUNT.size + len(self.parts) * _LENGTH.size
        return _Unpacker(io.BytesIO(self.body[start : self.length]), self.parts).load()


def collect(head: Tensor, fetch: Callable[[Tensor], object]) -> ReceivedObject:
    """Receive the rest of an object whose first message has arrived.

    Args:
        head: First message of the object.
        fetch: Function that receives the sender's next message into a given tensor.

    Returns:
        Content of all messages, not yet unpickled.
    """
    data = _bytearray(head)
    length, body = int(_LENGTH.unpack_from(data)[0]), data[_LENGTH.size :]
    if length < 0:
        return ReceivedObject(length, body)
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
    return ReceivedObject(length, body, parts)


class _Packer(pickle.Pickler):
    """Pickler that stores ordinary tensors as bytes, outside of the pickle.

    A tensor that the object contains twice is stored once. Quantized, nested, sparse and other
    special tensors are pickled as usual.
    """

    def __init__(self, file: io.BytesIO, parts: list[Tensor]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._parts = parts
        self._known: dict[int, _Reference] = {}
        self._alive: list[Tensor] = []  # keeps tensors alive, so that no id is reused

    def persistent_id(self, obj: Any) -> _Reference | None:
        """Return a reference that pickle stores in place of an ordinary tensor.

        A reference is a tuple: number of the tensor, its properties, and its bytes. Bytes of a
        large tensor are sent as a separate message, and the reference has the message's index.

        Returns:
            The reference; None for any other object, which is then pickled as usual.
        """
        if type(obj) not in _KINDS or not _is_plain(obj):
            return None
        if id(obj) not in self._known:
            self._alive.append(obj)
            self._known[id(obj)] = (len(self._known), tuple(_about(obj)), self._memory(obj))
        return self._known[id(obj)]

    def _memory(self, tensor: Tensor) -> int | bytes:
        """Return the bytes of a small tensor, or the message number of a large tensor.

        The bytes of a large tensor are sent as a separate message.
        """
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        flat = flat.view(torch.uint8)
        if flat.numel() < _PART_BYTES:
            return bytes(_bytearray(flat))
        self._parts.append(flat)
        return len(self._parts) - 1


class _Unpacker(pickle.Unpickler):
    """Unpickler that restores the tensors that `_Packer` stored outside of the pickle."""

    def __init__(self, file: io.BytesIO, parts: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._parts = parts
        self._made: dict[int, Tensor] = {}

    def persistent_load(self, pid: Any) -> Tensor:
        """Return the tensor that a reference in the pickle describes.

        References with the same tensor number give the same tensor object.

        Args:
            pid: Reference that `_Packer.persistent_id` returned: number, properties and bytes of
                the tensor.
        """
        number, about, memory = pid
        if number not in self._made:
            flat = self._parts[memory] if isinstance(memory, int) else _bytes_tensor(memory)
            self._made[number] = _tensor(flat, _About(*about))
        return self._made[number]


def _is_plain(tensor: Tensor) -> bool:
    """Return True if a tensor can be restored from its bytes and a few properties.

    The result is False for quantized, nested and sparse tensors, for tensors on the meta device,
    and for tensors with attributes that the user has added.
    """
    return (
        tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
        and not tensor.is_nested
        and not getattr(tensor, "__dict__", None)
    )


def _about(tensor: Tensor) -> _About:
    """Return the properties of a tensor, such as its shape, that are sent with its bytes."""
    return _About(
        dtype=tensor.dtype,
        shape=tuple(tensor.shape),
        requires_grad=tensor.requires_grad and tensor.is_leaf,
        is_parameter=isinstance(tensor, nn.Parameter),
        on_accelerator=not tensor.is_cpu,
    )


def _tensor(flat: Tensor, about: _About) -> Tensor:
    """Make a tensor from a flat tensor of its bytes and from its properties."""
    made = flat.view(about.dtype).reshape(about.shape)
    device = current_device() if about.on_accelerator else None
    if device is not None:
        made = made.to(device)
    if about.is_parameter:
        return nn.Parameter(made, requires_grad=about.requires_grad)
    return made.requires_grad_(about.requires_grad)


def _head(length: int, start: bytes) -> Tensor:
    """Return the first message of an object, padded with zeros to HEAD_BYTES.

    Args:
        length: Number of bytes of the packed object; negative if an error text is sent instead.
        start: First bytes of the packed object, or the error text.
    """
    return _bytes_tensor((_LENGTH.pack(length) + start).ljust(HEAD_BYTES, b"\0"))


def _bytes_tensor(data: bytes) -> Tensor:
    """Return a tensor of dtype uint8 with a copy of these bytes."""
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _bytearray(flat: Tensor) -> bytearray:
    """Return a copy of the bytes in a flat tensor of dtype uint8."""
    data = bytearray(flat.numel())
    if data:
        torch.frombuffer(data, dtype=torch.uint8).copy_(flat)
    return data


T = TypeVar("T")
_TAG: Final = 0


def send_object(obj: object, to: Sequence[int], group: dist.ProcessGroup) -> None:
    """Send an object to some ranks of a group; wait until all of them have received it.

    Args:
        obj: Any object that can be pickled.
        to: Receiving ranks, numbered in the group; each calls `recv_object`.
        group: Process group that is used for these sends and receives alone.

    Raises:
        Exception: Error of pickle; the receivers get its text.
    """
    packed = pack(obj)
    works = [
        dist.isend(piece, group=group, group_dst=rank, tag=_TAG)
        for piece in packed.pieces
        for rank in to
    ]
    for work in works:
        if work is not None:
            work.wait()
    _raise_failure(packed)


def recv_object(source: int, group: dist.ProcessGroup) -> Any:
    """Receive an object that another rank sends with `send_object`, and return it.

    Args:
        source: Sending rank, numbered in the group.
        group: Process group that is used for these sends and receives alone.

    Raises:
        UnsentError: The sender could not pickle the object.
    """

    def fetch(buffer: Tensor) -> None:
        dist.recv(buffer, group=group, group_src=source, tag=_TAG)

    head = empty_head()
    fetch(head)
    return collect(head, fetch).read(_name(source, group))


def broadcast_object(obj: T, source: int, group: dist.ProcessGroup) -> T:
    """Send an object from one rank to all ranks of a group, and return it on every rank.

    All ranks of the group must call this.

    Args:
        obj: Object to send; ignored on all ranks but the source.
        source: Sending rank, numbered in the group.
        group: Process group of the ranks.

    Raises:
        UnsentError: The source could not pickle the object. The source itself raises the error of
            pickle instead.
    """
    if group.size() == 1:
        return obj
    fetch = partial(_broadcast, source=source, group=group)
    if group.rank() == source:
        packed = pack(obj)
        for piece in packed.pieces:
            fetch(piece)
        _raise_failure(packed)
        return obj
    head = empty_head()
    fetch(head)
    shared: T = collect(head, fetch).read(_name(source, group))
    return shared


def all_gather_object(obj: T, group: dist.ProcessGroup) -> list[T]:
    """Return the objects of all ranks of a group, in group order; all ranks must call this.

    Raises:
        UnsentError: Another rank could not pickle its object. That rank itself raises the error of
            pickle instead.
    """
    if group.size() == 1:
        return [obj]
    packed = pack(obj)
    heads = [empty_head() for _ in range(group.size())]
    dist.all_gather(heads, packed.head, group=group)
    arrived = [_gathered(head, rank, packed, group) for rank, head in enumerate(heads)]
    _raise_failure(packed)
    return [
        obj if rank == group.rank() else each.read(_name(rank, group))
        for rank, each in enumerate(arrived)
    ]


def cpu_barrier(group: dist.ProcessGroup) -> None:
    """Wait until every rank of the group has called this function."""
    options = BarrierOptions()
    options.device = torch.device("cpu")
    group.barrier(opts=options).wait()


def _gathered(
    head: Tensor, rank: int, mine: PackedObject, group: dist.ProcessGroup
) -> ReceivedObject:
    """Broadcast one rank's object, without its first message (head); all ranks must call this.

    Args:
        head: First message of the object, which this rank has already.
        rank: Rank that has the object, numbered in the group.
        mine: Messages of this rank's own object; sent if `rank` is this rank.
        group: Process group of the ranks.

    Returns:
        The received object; on the rank that sent it, an empty placeholder.
    """
    fetch = partial(_broadcast, source=rank, group=group)
    if rank != group.rank():
        return collect(head, fetch)
    for piece in mine.pieces[1:]:
        fetch(piece)
    return ReceivedObject(0, bytearray())  # placeholder: no rank reads its own object


def _broadcast(tensor: Tensor, *, source: int, group: dist.ProcessGroup) -> None:
    """Copy the values of `tensor` from the source into `tensor` on all other ranks of a group.

    Args:
        tensor: Tensor to send or to fill.
        source: Sending rank, numbered in the group.
        group: Process group of the ranks.
    """
    dist.broadcast(tensor, group=group, group_src=source)


def _raise_failure(packed: PackedObject) -> None:
    """Raise the error of pickle if the object could not be pickled; else do nothing."""
    if packed.failure is not None:
        raise packed.failure


def _name(rank: int, group: dist.ProcessGroup) -> str:
    """Return the name of a rank for error texts, by its number in the world: "rank 3".

    Args:
        rank: Rank, numbered in the group.
        group: Process group of the rank.
    """
    return f"rank {dist.get_global_rank(group, rank)}"
