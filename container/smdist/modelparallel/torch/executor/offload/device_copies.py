# SPDX-License-Identifier: Apache-2.0
"""Copies between the device and pinned host memory, on streams of their own.

Copies to the host and copies to the device have a stream each, so both run while the device
computes. A copy to the host waits for the work that is queued on the stream that computes at the
time of the call. A copy to the device does so, too: its target may be memory that this work still
uses. The stream that computes does not wait here; whoever needs the result waits for the event that
is returned.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smdist.modelparallel.torch.executor.offload.host_buffers import HostBuffer, HostBuffers


class DeviceCopies:
    """Copies of tensors of bytes between one device and the host.

    Args:
        device: Accelerator of this process.

    Attributes:
        device: The argument of the same name.
        buffers: Pinned memory that the copies use.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers = HostBuffers()
        self._to_host = torch.Stream(device)
        self._to_device = torch.Stream(device)

    def save(self, source: Tensor, home: torch.Stream) -> tuple[HostBuffer, Any]:
        """Start to copy bytes of the device to the host.

        The memory of `source` must not be freed or changed before the copy is complete.

        Args:
            source: Tensor of bytes on the device.
            home: Stream that computes them.

        Returns:
            Buffer with the bytes, and the event that is complete after the copy.
        """
        buffer = self.buffers.take(source.nbytes)
        self._to_host.wait_event(home.record_event())
        if buffer.last_use is not None:
            self._to_host.wait_event(buffer.last_use)
        with self._to_host:
            buffer.memory[: source.nbytes].copy_(source, non_blocking=True)
            done = self._to_host.record_event()
        buffer.last_use = done
        return buffer, done

    def load(self, buffer: HostBuffer, num_bytes: int, home: torch.Stream) -> tuple[Tensor, Any]:
        """Start to copy bytes of a buffer to new memory of the device.

        The memory must not be freed before its home stream waits for the event that is returned.

        Args:
            buffer: Buffer that `save` returned. The home stream waits for the event of `save`
                already.
            num_bytes: Number of bytes.
            home: Stream in whose memory the bytes will be.

        Returns:
            Tensor of bytes on the device, and the event that is complete after the copy.
        """
        with home:
            target = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        self._to_device.wait_event(home.record_event())
        with self._to_device:
            target.copy_(buffer.memory[:num_bytes], non_blocking=True)
            done = self._to_device.record_event()
        buffer.last_use = done
        return target, done
