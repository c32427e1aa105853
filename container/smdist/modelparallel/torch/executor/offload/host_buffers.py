# SPDX-License-Identifier: Apache-2.0
"""Pool of pinned buffers in the host's memory, which steps use again and again.

Pinned memory is expensive to allocate, and only pinned memory can be copied while the device
computes. A buffer that is given back may still be read or written by a copy that is queued. The
pool keeps the event of this copy, and the next user of the buffer lets its stream wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_PARTS = 8  # a buffer is at most 1/8 larger than what it holds


@dataclass(slots=True, eq=False)
class HostBuffer:
    """Pinned memory of the host.

    Attributes:
        memory: Tensor of bytes.
        last_use: Event after the last copy that reads or writes the memory; None before the first.
        was_taken: True if the buffer was in use since the last `HostBuffers.trim`.
    """

    memory: Tensor
    last_use: Any = None
    was_taken: bool = True


class HostBuffers:
    """Pool of pinned buffers.

    Attributes:
        allocations: Number of buffers that were allocated, and not taken from the pool.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[HostBuffer]] = {}
        self.allocations = 0

    def take(self, num_bytes: int) -> HostBuffer:
        """Return a buffer of at least this size; its `last_use` may still be ahead."""
        size = _rounded(num_bytes)
        free = self._free.get(size)
        if free:
            buffer = free.pop()
            buffer.was_taken = True
            return buffer
        self.allocations += 1
        return HostBuffer(torch.empty(size, dtype=torch.uint8, pin_memory=True))

    def give(self, buffer: HostBuffer) -> None:
        """Return a buffer to the pool; its `last_use` says when its memory may be written again."""
        self._free.setdefault(buffer.memory.nbytes, []).append(buffer)

    def trim(self) -> None:
        """Free the buffers that were not in use since the last call of this function."""
        for size, buffers in list(self._free.items()):
            kept = [each for each in buffers if each.was_taken]
            for each in kept:
                each.was_taken = False
            if kept:
                self._free[size] = kept
            else:
                del self._free[size]

    @property
    def free_bytes(self) -> int:
        """Bytes of the buffers that nobody uses now."""
        return sum(size * len(buffers) for size, buffers in self._free.items())


def _rounded(num_bytes: int) -> int:
    """Return the size of the buffer for a number of bytes: few different sizes are in use."""
    step = max(512, (1 << (num_bytes - 1).bit_length()) // (2 * _PARTS))
    return -(-num_bytes // step) * step
