# SPDX-License-Identifier: Apache-2.0
"""What every rank does: all-reduces in a loop, timed; and how long memory alone would take."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

_now: dict[str, Any] = {}  # the buffer that is measured


def prepare(peer: str, size: int, dtype: str) -> None:
    """Make the buffer of `size` bytes, check one sum of it, and fill it with zeros.

    Zeros, because sums of sums would grow beyond what the dtype holds.
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
    """Wall and processor seconds of so many all-reduces, one after the other."""
    reduce = _now["reduce"]
    reduce()  # whoever was late is here now
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        reduce()
    return time.perf_counter() - wall, time.process_time() - cpu


def copy(iterations: int) -> tuple[float, float]:
    """The same for copies of the buffer: what reading and writing it once costs."""
    buffer = _now["buffer"]
    target = buffer + 0
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        target[:] = buffer
    return time.perf_counter() - wall, time.process_time() - cpu


def call(iterations: int) -> tuple[float, float]:
    """Seconds of calls of torch's all_reduce that do nothing, each after a copy of the buffer.

    The copy has pushed out of the caches what the call needs, as an all-reduce does.
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
