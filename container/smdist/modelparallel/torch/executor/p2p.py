# SPDX-License-Identifier: Apache-2.0
"""Messages between the ranks of a pipeline, over any torch.distributed backend with message tags.

A tensor is sent as raw bytes, in its memory layout. A receive is posted before its data is needed,
into a new buffer, which becomes the received tensor. A sent tensor is kept until its send is
complete. The number of incomplete sends to each rank is limited, so memory does not grow with the
number of microbatches. Tensors on an accelerator travel from device to device, if the backend can
do it (`DeviceTransfers`).

`MemoryCounter` counts the bytes and microbatches that a rank holds during a step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from smdist.modelparallel.torch.executor.device_transfers import DeviceTransfers
from smdist.modelparallel.torch.executor.step_errors import LostError
from smdist.modelparallel.torch.session.object_collectives import cpu_barrier

CPU: Final = torch.device("cpu")


@dataclass(slots=True)
class PeakCounter:
    """Counter of an amount, which also records the largest amount so far.

    Attributes:
        now: Present amount.
        peak: Largest amount since the start, or since `MemoryCounter.restart`.
    """

    now: int = 0
    peak: int = 0

    def add(self, amount: int) -> None:
        """Add to the present amount; a negative number reduces it."""
        self.now += amount
        self.peak = max(self.peak, self.now)


@dataclass(slots=True)
class MemoryCounter:
    """Counters of the memory that messages and microbatches of one executor occupy.

    Each counter has the present amount and its peak.

    Attributes:
        receive_bytes: Bytes of receive buffers. Each buffer counts until the forward or backward
            pass that reads it has ended.
        send_bytes: Bytes of tensors whose sends may be incomplete.
        held: Number of microbatches whose forward pass has run and whose backward pass has not,
            summed over this rank's stages.
    """

    receive_bytes: PeakCounter = field(default_factory=PeakCounter)
    send_bytes: PeakCounter = field(default_factory=PeakCounter)
    held: PeakCounter = field(default_factory=PeakCounter)

    def restart(self) -> None:
        """Forget the peaks so far: set each one to the present amount."""
        for count in (self.receive_bytes, self.send_bytes, self.held):
            count.peak = count.now


@dataclass(slots=True)
class PendingMessage:
    """Message that is being sent or received, and may not be complete yet.

    Attributes:
        peer: Pipeline rank at the other end.
        work: Handle of the transfer (`torch.distributed.Work`); None for a message of 0 bytes,
            which is not sent.
        buffer: Tensor that is sent or received.
    """

    peer: int
    work: Any
    buffer: Tensor


class P2P:
    """Sender and receiver of one rank's messages, with a limit on incomplete sends.

    Args:
        group: Process group of the pipeline's ranks; `peer` arguments are ranks in this group.
        memory: Counter to which the bytes of messages are added.
        transfers: Sender and receiver of tensors on this rank's device; None if all messages are
            tensors on the CPU.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        memory: MemoryCounter,
        transfers: DeviceTransfers | None = None,
    ) -> None:
        self._group, self._memory, self._transfers = group, memory, transfers
        self._ways: dict[tuple[int, int], deque[PendingMessage]] = {}
        if transfers is not None:
            transfers.begin_step()

    def place(self, device: torch.device) -> torch.device:
        """Return the device on which the messages of a value are: this rank's own, or the CPU.

        Args:
            device: Device of the value; only its type counts.
        """
        if self._transfers is None or device.type == "cpu":
            return CPU
        return self._transfers.device

    def receive(
        self, shape: tuple[int, ...], dtype: torch.dtype, peer: int, tag: int, place: torch.device
    ) -> PendingMessage:
        """Start to receive a tensor into a new buffer, and return without waiting for its data.

        Args:
            shape: Shape of the tensor.
            dtype: Dtype of the tensor.
            peer: Pipeline rank of the sender.
            tag: Tag with which the sender sends the message.
            place: Device of the buffer, as `place` returns it.
        """
        work = None
        if place is CPU or self._transfers is None:
            buffer = torch.empty(shape, dtype=dtype)
        else:
            buffer = self._transfers.buffer(shape, dtype)
        self._memory.receive_bytes.add(buffer.nbytes)
        if buffer.nbytes:
            with _losing(peer):
                if self._transfers is None or buffer.is_cpu:
                    work = dist.irecv(_bytes(buffer), group=self._group, group_src=peer, tag=tag)
                else:
                    work = self._transfers.receive(buffer, peer, tag)
        return PendingMessage(peer, work, buffer)

    def wait(self, message: PendingMessage) -> Tensor:
        """Wait until a receive is complete; return its buffer, which then contains the data.

        For a buffer on a device, not the host waits but the device's current stream.

        Raises:
            LostError: The sender has ended or has aborted the step.
        """
        self._await(message)
        return message.buffer

    def freed(self, buffer: Tensor) -> None:
        """Subtract a receive buffer from the memory counter, after the last use of the buffer."""
        self._memory.receive_bytes.add(-buffer.nbytes)

    def send(self, tensor: Tensor, way: tuple[int, int], tag: int, *, most: int) -> None:
        """Start to send a tensor, which must not change until the send is complete.

        Args:
            tensor: Contiguous tensor.
            way: Pipeline rank of the receiver, and the direction: FORWARD for values, BACKWARD for
                gradients.
            tag: Tag with which the receiver posts its receive.
            most: Largest number of incomplete sends to this rank in this direction. At this number,
                the call first waits until the oldest send is complete.

        Raises:
            LostError: This message or an earlier one could not be sent.
        """
        if not tensor.nbytes:
            return
        pending = self._ways.setdefault(way, deque())
        self._reap(pending)
        while len(pending) >= most:
            self._done(pending.popleft())
        with _losing(way[0]):
            if self._transfers is None or tensor.is_cpu:
                work = dist.isend(_bytes(tensor), group=self._group, group_dst=way[0], tag=tag)
            else:
                work = self._transfers.send(tensor, way[0], tag)
        pending.append(PendingMessage(way[0], work, tensor))
        self._memory.send_bytes.add(tensor.nbytes)

    def end_action(self) -> None:
        """Wait if the host has queued too many actions that the device has not run yet.

        Raises:
            LostError: Another rank has ended or has aborted the step.
        """
        if self._transfers is not None:
            self._transfers.end_action()

    def wait_for_device(self) -> None:
        """Wait until the device has run what is queued, if it sends and receives messages.

        Raises:
            LostError: Another rank has ended or has aborted the step.
        """
        if self._transfers is not None:
            self._transfers.wait_for_device()

    def flush(self) -> None:
        """Wait until all sends are complete, and the device has run all actions.

        Raises:
            LostError: A message could not be sent.
        """
        for pending in self._ways.values():
            while pending:
                self._done(pending.popleft())
        self.wait_for_device()

    def meet(self) -> None:
        """Wait until all ranks of the group have called this method; this is a barrier.

        Raises:
            LostError: Another rank has ended or has aborted the step.
        """
        if dist.get_world_size(self._group) > 1:
            with _losing(None):
                cpu_barrier(self._group)

    def _reap(self, pending: deque[PendingMessage]) -> None:
        """Remove completed sends without waiting, from the oldest one to the first incomplete one.

        Args:
            pending: Sends to one rank in one direction, the oldest first.
        """
        while pending and pending[0].work.is_completed():
            self._done(pending.popleft())

    def _await(self, message: PendingMessage) -> None:
        """Wait until a message has been received."""
        if message.work is not None:
            with _losing(message.peer):
                if self._transfers is None or message.buffer.is_cpu:
                    message.work.wait()
                else:
                    self._transfers.join(message.work, message.buffer)

    def _done(self, message: PendingMessage) -> None:
        """Wait until a send is complete, and subtract its tensor from the memory counter."""
        with _losing(message.peer):
            if self._transfers is None or message.buffer.is_cpu:
                message.work.wait()
            else:
                self._transfers.wait_sent(message.work)
        self._memory.send_bytes.add(-message.buffer.nbytes)


def _bytes(tensor: Tensor) -> Tensor:
    """Return a view of a contiguous tensor as a vector of bytes, with dtype uint8."""
    return tensor.view(-1).view(torch.uint8)


class _losing:  # noqa: N801  named as in contextlib, whose generators would be too slow here
    """Context for a `with` block that converts errors of the communication backend to LostError.

    Args:
        peer: Pipeline rank at the other end of the message; None for a collective operation.
    """

    __slots__ = ("_peer",)

    def __init__(self, peer: int | None) -> None:
        self._peer = peer

    def __enter__(self) -> None:
        """Do nothing: errors are converted when the `with` block ends."""

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, (RuntimeError, ValueError)):  # DistBackendError is a RuntimeError
            raise LostError(self._peer, error) from error
