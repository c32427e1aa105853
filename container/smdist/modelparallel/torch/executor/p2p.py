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
    """An amount that rises and falls, and its peak."""

    now: int = 0
    peak: int = 0

    def add(self, amount: int) -> None:
        """Add an amount; a negative one is removed."""
        self.now += amount
        self.peak = max(self.peak, self.now)


@dataclass(slots=True)
class MemoryCounter:
    """Memory that one executor holds, since it was made or since `restart()`.

    Attributes:
        receive_bytes: Bytes of receive buffers, from the posting of a receive to the end of the
            action that reads it.
        send_bytes: Bytes of tensors in sends that may be incomplete.
        held: Number of pairs of stage and microbatch between forward and backward pass.
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
    """Message in flight; an empty message has no work."""

    peer: int
    work: Any
    buffer: Tensor


class P2P:
    """Sends and receives of one rank.

    Args:
        group: Process group of the pipeline's ranks.
        memory: Counter of the buffers.
    """

    def __init__(self, group: dist.ProcessGroup, memory: MemoryCounter) -> None:
        self._group, self._memory = group, memory
        self._ways: dict[tuple[int, int], deque[PendingMessage]] = {}

    def receive(
        self, shape: tuple[int, ...], dtype: torch.dtype, peer: int, tag: int
    ) -> PendingMessage:
        """Post a receive into a new buffer."""
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
        """Count the buffer as free; the action that reads it has ended."""
        self._memory.receive_bytes.add(-buffer.nbytes)

    def send(self, tensor: Tensor, way: tuple[int, int], tag: int, *, most: int) -> None:
        """Post the send of a tensor that does not change any more.

        Args:
            tensor: The tensor, contiguous.
            way: The receiver and the direction. Messages of one direction are received in about
                the order of their sends.
            tag: Tag of the message.
            most: Limit of messages in flight that way; a further send waits for the oldest one.

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
        """Wait until all ranks have called this method.

        Raises:
            LostError: A rank will not call it.
        """
        if dist.get_world_size(self._group) > 1:
            with _losing(None):
                dist.barrier(self._group)

    def _reap(self, pending: deque[PendingMessage]) -> None:
        while pending and pending[0].work.is_completed():
            self._done(pending.popleft())

    def _await(self, message: PendingMessage) -> None:
        if message.work is not None:
            with _losing(message.peer):
                message.work.wait()

    def _done(self, message: PendingMessage) -> None:
        self._await(message)
        self._memory.send_bytes.add(-message.buffer.nbytes)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


class _losing:  # noqa: N801  as contextlib's own; a generator would take longer than the message
    """Turn an error raised within into LostError, with the rank of the message."""

    __slots__ = ("_peer",)

    def __init__(self, peer: int | None) -> None:
        self._peer = peer

    def __enter__(self) -> None:
        """Prepare nothing."""

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, (RuntimeError, ValueError)):  # DistBackendError is a RuntimeError
            raise LostError(self._peer, error) from error
