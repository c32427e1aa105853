# SPDX-License-Identifier: Apache-2.0
"""Messages between the ranks of a pipeline, over any backend that has tags.

A tensor travels as its bytes lie in memory. A receive is posted before its data is needed, into a
new buffer that becomes the value. A send keeps its tensor until the send is complete. The number of
messages in flight to a rank is limited, so memory does not grow with the number of microbatches.

`MemoryCounter` counts what a rank holds during a step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smdist.modelparallel.torch.executor.step_errors import LostError


@dataclass(slots=True)
class PeakCounter:
    """Counter of an amount, and of the largest amount so far.

    Attributes:
        now: Present amount.
        peak: Largest amount since the start, or since `MemoryCounter.restart`.
    """

    now: int = 0
    peak: int = 0

    def add(self, amount: int) -> None:
        """Add to the amount; a negative number reduces it."""
        self.now += amount
        self.peak = max(self.peak, self.now)


@dataclass(slots=True)
class MemoryCounter:
    """Memory of one executor's messages and microbatches: present amounts and peaks.

    Attributes:
        receive_bytes: Bytes of receive buffers; each counts until the action that reads it ends.
        send_bytes: Bytes of tensors whose send may be incomplete.
        held: Number of microbatches between their forward and backward pass, summed over stages.
    """

    receive_bytes: PeakCounter = field(default_factory=PeakCounter)
    send_bytes: PeakCounter = field(default_factory=PeakCounter)
    held: PeakCounter = field(default_factory=PeakCounter)

    def restart(self) -> None:
        """Set the peaks to the present amounts."""
        for count in (self.receive_bytes, self.send_bytes, self.held):
            count.peak = count.now


@dataclass(slots=True)
class PendingMessage:
    """Message whose transfer may be incomplete.

    Attributes:
        peer: Pipeline rank at the other end.
        work: Handle of the transfer; None for a message of 0 bytes, which is not sent.
        buffer: Tensor that is sent or received.
    """

    peer: int
    work: Any
    buffer: Tensor


class P2P:
    """Sends and receives of one rank, with a limit on the sends that are in flight.

    Args:
        group: Process group of the pipeline's ranks, which number the peers.
        memory: Counter to which buffers are added.
    """

    def __init__(self, group: dist.ProcessGroup, memory: MemoryCounter) -> None:
        self._group, self._memory = group, memory
        self._ways: dict[tuple[int, int], deque[PendingMessage]] = {}

    def receive(
        self, shape: tuple[int, ...], dtype: torch.dtype, peer: int, tag: int
    ) -> PendingMessage:
        """Start to receive a tensor from `peer` into a new buffer; do not wait for it."""
        buffer = torch.empty(shape, dtype=dtype)
        self._memory.receive_bytes.add(buffer.nbytes)
        work = None
        if buffer.nbytes:
            with _losing(peer):
                work = dist.irecv(_bytes(buffer), group=self._group, group_src=peer, tag=tag)
        return PendingMessage(peer, work, buffer)

    def wait(self, message: PendingMessage) -> Tensor:
        """Wait until a message has arrived; return its buffer.

        Raises:
            LostError: The message will not arrive.
        """
        self._await(message)
        return message.buffer

    def freed(self, buffer: Tensor) -> None:
        """Subtract a receive buffer from the memory counter; call it after its last use."""
        self._memory.receive_bytes.add(-buffer.nbytes)

    def send(self, tensor: Tensor, way: tuple[int, int], tag: int, *, most: int) -> None:
        """Start to send a tensor, which must not change until the send is complete.

        Args:
            tensor: Contiguous tensor.
            way: Receiving rank, and direction: FORWARD for values, BACKWARD for gradients. `most`
                counts the messages of each way by itself.
            tag: Tag of the message.
            most: Largest number of messages in flight of this way. If there are as many, the call
                first waits for the oldest of them.

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
        pending.append(PendingMessage(way[0], work, tensor))
        self._memory.send_bytes.add(tensor.nbytes)

    def flush(self) -> None:
        """Wait until all sends are complete.

        Raises:
            LostError: A message did not arrive.
        """
        for pending in self._ways.values():
            while pending:
                self._done(pending.popleft())

    def meet(self) -> None:
        """Wait until all ranks of the group have called this method.

        Raises:
            LostError: A rank will not call it.
        """
        if dist.get_world_size(self._group) > 1:
            with _losing(None):
                dist.barrier(self._group)

    def _reap(self, pending: deque[PendingMessage]) -> None:
        """Remove the oldest messages whose send is complete."""
        while pending and pending[0].work.is_completed():
            self._done(pending.popleft())

    def _await(self, message: PendingMessage) -> None:
        """Wait until a transfer is complete."""
        if message.work is not None:
            with _losing(message.peer):
                message.work.wait()

    def _done(self, message: PendingMessage) -> None:
        """Wait for a send, and subtract its tensor from the memory counter."""
        self._await(message)
        self._memory.send_bytes.add(-message.buffer.nbytes)


def _bytes(tensor: Tensor) -> Tensor:
    """View a contiguous tensor as a vector of bytes."""
    return tensor.view(-1).view(torch.uint8)


class _losing:  # noqa: N801  named as in contextlib, whose generators would be too slow here
    """Convert an error of the backend in the block to LostError.

    Args:
        peer: Pipeline rank at the other end of the message; None for a collective.
    """

    __slots__ = ("_peer",)

    def __init__(self, peer: int | None) -> None:
        self._peer = peer

    def __enter__(self) -> None:
        """Prepare nothing."""

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, (RuntimeError, ValueError)):  # DistBackendError is a RuntimeError
            raise LostError(self._peer, error) from error
