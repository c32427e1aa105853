# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: timed all-reduces in a loop, and copies of the buffer for comparison."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

_now: dict[str, Any] = {}  # the all-reduce being measured, and its buffer


def prepare(peer: str, size: int, dtype: str) -> None:
    """Create the buffer of `size` bytes, check one sum of it, and fill it with zeros.

    Repeated sums of other values would exceed the range of the dtype.
    """
    _now.clear()
    _now["reduce"] = _sum(peer, size, dtype)
    _now["buffer"] = buffer = _now["reduce"].buffer
    rank, ranks = _now["reduce"].rank, _now["reduce"].ranks
    buffer[:] = rank + 1
    _now["reduce"]()
    expected = ranks * (ranks + 1) / 2
    assert (buffer == expected).all(), f"{peer} sums to {buffer[:4]}, not {expected}"
    buffer[:] = 0


def _sum(peer: str, size: int, dtype: str) -> Any:
    if peer == "bare":
        from benchmarks.allreduce.bare import BareSum

        return BareSum(size)
    return MpiSum(size) if peer == "openmpi" else TorchSum(size, dtype)


def measure(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of this many all-reduces, one after another."""
    reduce = _now["reduce"]
    reduce()  # waits for ranks that are late
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        reduce()
    return time.perf_counter() - wall, time.process_time() - cpu


def copy(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of copies of the buffer, each a read and a write."""
    buffer = _now["buffer"]
    target = buffer + 0
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        target[:] = buffer
    return time.perf_counter() - wall, time.process_time() - cpu


def call(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of all_reduce calls without data, each after a copy.

    The copy of the buffer removes the call's data from the caches, as an all-reduce does.
    """
    import torch
    import torch.distributed as dist

    from benchmarks.allreduce.bare import silent_group

    silent_group()
    buffer, tensor, seconds = _now["buffer"], torch.from_numpy(_now["buffer"]), 0.0
    target = buffer + 0
    for _ in range(iterations):
        target[:] = buffer
        begin = time.thread_time()
        dist.all_reduce(tensor)
        seconds += time.thread_time() - begin
    return seconds, seconds


class TorchSum:
    def __init__(self, size: int, dtype: str) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        kind = getattr(torch, dtype)
        self.buffer = torch.empty(size // kind.itemsize, dtype=kind)
        self._all_reduce = dist.all_reduce

    def __call__(self) -> None:
        self._all_reduce(self.buffer)


class MpiSum:
    def __init__(self, size: int) -> None:
        from mpi4py import MPI

        self._in_place, self._world = MPI.IN_PLACE, MPI.COMM_WORLD
        self.rank, self.ranks = self._world.rank, self._world.size
        self.buffer = np.empty(size // 4, np.float32)

    def __call__(self) -> None:
        self._world.Allreduce(self._in_place, self.buffer)
