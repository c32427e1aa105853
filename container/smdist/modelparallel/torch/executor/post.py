# SPDX-License-Identifier: Apache-2.0
"""Messages between the ranks of a pipeline: tensors as they lie in memory, over any backend that
has tags.

A receive is posted before it is needed, into a buffer of its own that becomes the value. A send
keeps its tensor until it has left. How many may be on their way to a rank is bounded, so what waits
there does not grow with the number of microbatches.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smdist.modelparallel.torch.executor.errors import LostError
from smdist.modelparallel.torch.executor.ledger import Ledger
from smdist.modelparallel.torch.executor.wiring import Wire

_CPU = torch.device("cpu")


@dataclass(slots=True)
class Parcel:
    """A message on its way, or one without bytes: that has no work."""

    peer: int
    work: Any
    buffer: Tensor


class Post:
    """Sends and receives of one rank.

    Args:
        group: Its ranks are those of the pipeline.
        ledger: Where buffers are counted.
    """

    def __init__(self, group: dist.ProcessGroup, ledger: Ledger) -> None:
        self._group, self._ledger = group, ledger
        self._ways: dict[tuple[int, int], deque[Parcel]] = {}

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, peer: int, tag: int) -> Parcel:
        """Begin to receive into a new buffer."""
        buffer = torch.empty(shape, dtype=dtype)
        self._ledger.receive_bytes.add(buffer.nbytes)
        work = None
        if buffer.nbytes:
            with _losing(peer):
                work = dist.irecv(_bytes(buffer), group=self._group, group_src=peer, tag=tag)
        return Parcel(peer, work, buffer)

    def wait(self, parcel: Parcel) -> Tensor:
        """The buffer, when it is full.

        Raises:
            LostError: The message will not come.
        """
        self._await(parcel)
        return parcel.buffer

    def freed(self, buffer: Tensor) -> None:
        """The action that reads a buffer has ended."""
        self._ledger.receive_bytes.add(-buffer.nbytes)

    def send(self, tensor: Tensor, way: tuple[int, int], tag: int, *, most: int) -> None:
        """Begin to send a tensor that nobody changes any more.

        Args:
            way: The receiver, and the direction: messages one way are taken in about this order.
            most: Messages that may be on their way there; more wait for the first of them.

        Raises:
            LostError: An earlier message did not arrive.
        """
        if not tensor.nbytes:
            return
        pending = self._ways.setdefault(way, deque())
        self._reap(pending)
        while len(pending) >= most:
            self._done(pending.popleft())
        with _losing(way[0]):
            work = dist.isend(_bytes(tensor), group=self._group, group_dst=way[0], tag=tag)
        pending.append(Parcel(way[0], work, tensor))
        self._ledger.send_bytes.add(tensor.nbytes)

    def flush(self) -> None:
        """Wait until all has left.

        Raises:
            LostError: A message did not arrive.
        """
        for pending in self._ways.values():
            while pending:
                self._done(pending.popleft())

    def meet(self) -> None:
        """Wait until all ranks are here.

        Raises:
            LostError: One will not come.
        """
        if dist.get_world_size(self._group) > 1:
            with _losing(None):
                dist.barrier(self._group)

    def _reap(self, pending: deque[Parcel]) -> None:
        while pending and pending[0].work.is_completed():
            self._done(pending.popleft())

    def _await(self, parcel: Parcel) -> None:
        if parcel.work is not None:
            with _losing(parcel.peer):
                parcel.work.wait()

    def _done(self, parcel: Parcel) -> None:
        self._await(parcel)
        self._ledger.send_bytes.add(-parcel.buffer.nbytes)


def packed(tensor: Tensor, wire: Wire) -> Tensor:
    """A value as it travels: on the CPU, contiguous in the wire's order."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if wire.order is not None:
        tensor = tensor.permute(wire.order)
    return tensor.to(_CPU).resolve_conj().resolve_neg().contiguous()


def unpacked(buffer: Tensor, wire: Wire) -> Tensor:
    """The value in a buffer, where the stage computes."""
    device = wire.facts.device
    if device.type != "cpu":
        buffer = buffer.to(_here(device))
    return buffer if wire.back is None else buffer.permute(wire.back)


def _here(device: torch.device) -> torch.device:
    """The plan may have been made on another device of this kind."""
    module = torch.get_device_module(device)
    return torch.device(device.type, module.current_device())


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


class _losing:  # noqa: N801  as contextlib's own; a generator would take longer than the message
    """What fails within is a message of a rank."""

    __slots__ = ("_peer",)

    def __init__(self, peer: int | None) -> None:
        self._peer = peer

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, (RuntimeError, ValueError)):  # DistBackendError is one of them
            raise LostError(self._peer, error) from error
