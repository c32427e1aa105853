# SPDX-License-Identifier: Apache-2.0
"""Messages between stages from device to device, while the device computes.

A receive is posted on a stream of its own, so it does not wait for the computation that is queued
at the time. Its buffer is allocated just before, on that stream. The stream that computes waits for
the data when a stage needs it. The allocator knows that this stream uses the buffer, so the buffer
is not used again too early.

The host only queues work, and runs ahead of the device. It may run ahead by `AHEAD` actions, so
that a rank has no more buffers than its schedule needs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from smdist.dataparallel.rendezvous.engine_shutdown import last_fault
from smdist.modelparallel.torch.accelerator import current_device, is_accelerator
from smdist.modelparallel.torch.executor.stage_edges import StageEdge
from smdist.modelparallel.torch.executor.step_errors import LostError
from smdist.modelparallel.torch.session.device_p2p import DeviceP2P, shared_p2p

AHEAD: Final = 2  # actions that are queued behind the one that the device runs
_LONGEST_PAUSE: Final = 0.001  # seconds between two looks at an event


class DeviceTransfers:
    """Sender and receiver of tensors on this rank's device.

    Args:
        p2p: Sends and receives between the ranks of the pipeline.
        device: Device of this rank.

    Attributes:
        device: The argument of the same name.
    """

    def __init__(self, p2p: DeviceP2P, device: torch.device) -> None:
        self._p2p, self.device = p2p, device
        self._receiving = torch.Stream(device)
        self._ending = torch.Stream(device)  # waits for sends
        self._actions: deque[torch.Event] = deque()  # complete when the device has run an action

    @property
    def is_ordered(self) -> bool:
        """True if messages of one sender have to be received in the order of sending."""
        return self._p2p.is_ordered

    def connect(self, edges: Iterable[StageEdge]) -> None:
        """Connect this rank with the ranks with which its stages exchange tensors on devices.

        All ranks of the pipeline call this method with the same edges, before the first message.

        Args:
            edges: Values that stages of the whole pipeline send to each other.

        Raises:
            DistBackendError: Ranks could not be connected.
        """
        remote = [each for each in edges if not each.is_local and is_accelerator(each.facts.device)]
        forward = {(each.source_rank, each.target_rank) for each in remote}
        back = {(each.target_rank, each.source_rank) for each in remote if each.edge.has_gradient}
        self._p2p.connect(forward | back)

    def begin_step(self) -> None:
        """Forget the actions of an earlier step, which may have failed."""
        self._actions.clear()

    def buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a new buffer for a receive, in memory of the stream of receives."""
        with self._receiving:
            return torch.empty(shape, dtype=dtype, device=self.device)

    def receive(self, buffer: Tensor, peer: int, tag: int) -> Any:
        """Start to receive a tensor; return the handle of the transfer.

        Args:
            buffer: Result of `buffer`.
            peer: Rank of the sender in the pipeline.
            tag: Tag of the message.
        """
        with self._receiving:
            return self._p2p.irecv(_bytes(buffer), peer, tag)

    def send(self, tensor: Tensor, peer: int, tag: int) -> Any:
        """Start to send a tensor behind the work of the current stream; return the handle.

        Args:
            tensor: Contiguous tensor on this rank's device.
            peer: Rank of the receiver in the pipeline.
            tag: Tag of the message.
        """
        return self._p2p.isend(_bytes(tensor), peer, tag)

    def join(self, work: Any, buffer: Tensor) -> None:
        """Let the current stream wait for a receive, and use its buffer.

        Args:
            work: Handle of the transfer.
            buffer: Buffer of the receive.
        """
        work.wait()
        buffer.record_stream(torch.accelerator.current_stream())

    def wait_sent(self, work: Any) -> None:
        """Wait on the host until a send is complete; the computation does not wait for it.

        Args:
            work: Handle of the transfer.

        Raises:
            LostError: Another rank has ended or has aborted the step.
        """
        with self._ending:
            work.wait()
            event = self._ending.record_event()
        _wait(event)

    def end_action(self) -> None:
        """Record the end of an action, and wait if the host is too far ahead of the device.

        Raises:
            LostError: Another rank has ended or has aborted the step.
        """
        self._actions.append(torch.accelerator.current_stream().record_event())
        while len(self._actions) > AHEAD:
            _wait(self._actions.popleft())

    def wait_for_device(self) -> None:
        """Wait until the device has run what is queued on the current stream.

        Raises:
            LostError: Another rank has ended or has aborted the step.
        """
        self._actions.clear()
        _wait(torch.accelerator.current_stream().record_event())


def device_transfers(group: dist.ProcessGroup) -> DeviceTransfers | None:
    """Return a sender and receiver for tensors on this process's current device.

    The result is None without an accelerator, or if the group's backend for it cannot send from
    device to device.

    Args:
        group: Process group of the pipeline.
    """
    device = current_device()
    if device is None:
        return None
    p2p = shared_p2p(group, device, "stages")
    return DeviceTransfers(p2p, device) if p2p.is_direct else None


def _wait(event: torch.Event) -> None:
    """Wait on the host until a device has reached an event.

    A device may wait for a message that never arrives. So the fault of another rank ends the wait.
    """
    pause = 0.00002
    while not event.query():
        fault = last_fault()
        if fault is not None:
            raise LostError(None, dist.DistBackendError(fault.text))
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _bytes(tensor: Tensor) -> Tensor:
    """Return a view of a contiguous tensor as a vector of bytes, with dtype uint8."""
    return tensor.view(-1).view(torch.uint8)
