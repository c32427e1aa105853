# SPDX-License-Identifier: Apache-2.0
"""DDP communication hook that only moves and adds bytes; see ../allreduce/bare_hosts.cc."""

import ctypes

import torch
import torch.distributed as dist

from benchmarks.allreduce.bare import connected, load

_Done = ctypes.CFUNCTYPE(None, ctypes.c_int64)


class BareMean:
    """Mean of gradients over all ranks, started when DDP has filled a bucket."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[torch.futures.Future[torch.Tensor], torch.Tensor]] = {}
        self._number = 0
        self._handle = connected()
        self._done = _Done(self._end)  # must live as long as the thread that calls it
        load().bare_start(self._handle, self._done)

    def begin(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start the mean of a bucket, as DDP's hook; return a future of its buffer."""
        buffer = bucket.buffer()
        buffer.div_(dist.get_world_size())
        future = torch.futures.Future[torch.Tensor]()
        self._number += 1
        self._begun[self._number] = (future, buffer)
        data, count = ctypes.c_void_p(buffer.data_ptr()), ctypes.c_uint64(buffer.numel())
        load().bare_submit(self._handle, data, count, ctypes.c_int64(self._number))
        return future

    def _end(self, number: int) -> None:
        future, buffer = self._begun.pop(number)
        future.set_result(buffer)
