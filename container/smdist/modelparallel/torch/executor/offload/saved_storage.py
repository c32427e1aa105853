# SPDX-License-Identifier: Apache-2.0
"""Memory of saved tensors that moves to the host, and comes back for the backward pass.

A storage is the memory of one or several tensors, such as of an activation and its views. It is
copied to the host once. Meanwhile, and later again, its bytes may be on the device, too:

    original    the tensor's own memory, until the copy to the host is complete
    loaded      new memory, from the start of the copy to the device until nobody needs it

The home of a storage is the stream that computes its content. It waits for the copy that reads or
writes the memory before this memory is freed. So the allocator may hand it out at once, and needs
no `record_stream`, by which memory would become free at a time that depends on how far the host is
ahead of the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smdist.modelparallel.torch.executor.offload.device_copies import DeviceCopies
from smdist.modelparallel.torch.executor.offload.host_buffers import HostBuffer


class SavedStorage:
    """Bytes of a storage, on the host, and sometimes on the device.

    The copy to the host starts at once. The host's buffer is given back when this object is freed.

    Args:
        copies: Copies between the device and the host.
        source: Tensor of the storage's bytes, which the current stream computes: the home stream.
        pin: Any object to keep, such as a weak reference to the storage.
    """

    def __init__(self, copies: DeviceCopies, source: Tensor, pin: object) -> None:
        self._copies, self._pin = copies, pin
        self._num_bytes = source.nbytes
        self._holders = 0
        self._buffer: HostBuffer | None
        self._home = torch.accelerator.current_stream()
        self._buffer, self._copied = copies.save(source, self._home)
        self._memory: Tensor | None = source
        self._loaded: Any = None  # event after the copy to the device; None for the original

    def __del__(self) -> None:
        if hasattr(self, "_memory"):
            self.free()

    @property
    def num_bytes(self) -> int:
        """Number of bytes."""
        return self._num_bytes

    @property
    def is_copied(self) -> bool:
        """True if the copy to the host is complete."""
        return bool(self._copied.query())

    @property
    def device_bytes(self) -> int:
        """Number of bytes that are on the device now."""
        return 0 if self._memory is None else self._num_bytes

    def hold(self) -> None:
        """Keep the bytes on the device until `release`; load them if they are not there."""
        self._holders += 1
        if self._memory is None:
            self._memory, self._loaded = self._load()

    def release(self) -> None:
        """End a `hold`; after the last one, the memory on the device is freed."""
        self._holders -= 1
        if self._holders == 0:
            self._drop()

    def bytes(self) -> Tensor:
        """Return the bytes on the device, which the current stream may read.

        Raises:
            RuntimeError: The step that saved them has failed.
        """
        here = torch.accelerator.current_stream()
        memory, loaded = self._memory, self._loaded
        if memory is None:
            memory, loaded = self._load()
        if loaded is not None:
            here.wait_event(loaded)
            if here != self._home:
                memory.record_stream(here)
        return memory

    def free(self) -> None:
        """Free all memory, on the device and on the host; the bytes are lost."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._copies.buffers.give(buffer)
        self._drop()

    def _load(self) -> tuple[Tensor, Any]:
        """Start to copy the bytes to new memory of the device; return it with the copy's event."""
        if self._buffer is None:
            raise RuntimeError(
                "an activation in the host's memory was freed: the step that computed it has failed"
            )
        return self._copies.load(self._buffer, self._num_bytes, self._home)

    def _drop(self) -> None:
        """Free the memory on the device, after the copy that reads or writes it."""
        if self._memory is None:
            return
        copied = self._copied if self._loaded is None else self._loaded
        try:
            self._home.wait_event(copied)
        finally:  # a device that has failed copies nothing any more
            self._memory = self._loaded = None
