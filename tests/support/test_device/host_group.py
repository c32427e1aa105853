# SPDX-License-Identifier: Apache-2.0
"""A process group for the device's tensors that copies them to the host for Gloo, and back.

It waits for every copy and overlaps nothing: what another group for the device does is right if it
has the same results.
"""

from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future

BACKEND = "host_gloo"


def register() -> None:
    """Make `init_process_group("host_gloo")` known to torch. Once a process."""
    if BACKEND.upper() not in dist.Backend.__dict__:
        dist.Backend.register_backend(BACKEND, _create, devices=["cpu", "testdev"])


def _create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> "HostGroup":
    return HostGroup(dist.ProcessGroupGloo(store, rank, size, timeout), rank, size)


def _complete(results):
    future = Future()
    future.set_result(results)
    return _create_work_from_future(future)


class HostGroup(dist.ProcessGroup):
    """The collectives that DDP and FSDP2 call."""

    def __init__(self, gloo: dist.ProcessGroupGloo, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._gloo = gloo

    def getBackendName(self):  # noqa: N802  the name that torch calls
        return BACKEND

    @property
    def pg_name(self):
        """The name that torch has given this group."""
        return dist.distributed_c10d._world.pg_names[self]

    group_name = pg_name

    def allreduce(self, tensors, opts):
        """Reduce each rank's tensors in place."""
        opts.asyncOp = False
        return self._in_place(tensors, lambda on_host: self._gloo.allreduce(on_host, opts))

    def broadcast(self, tensors, opts):
        """Give every rank the tensors of the root."""
        return self._in_place(tensors, lambda on_host: self._gloo.broadcast(on_host, opts))

    def allgather(self, outputs, inputs, opts):
        """Give every rank the tensors of all ranks, in lists."""
        on_host = [[output.cpu() for output in outputs[0]]]
        self._gloo.allgather(on_host, [inputs[0].cpu()], opts).wait()
        for output, result in zip(outputs[0], on_host[0], strict=True):
            output.copy_(result)
        return _complete(outputs[0])

    def all_gather_single(self, output, source, opts):
        """Give every rank the tensors of all ranks, one after the other."""
        on_host = output.cpu()
        self._gloo._allgather_base(on_host, source.cpu(), opts).wait()
        output.copy_(on_host)
        return _complete([output])

    def reduce_scatter_single(self, output, source, opts):
        """Reduce tensors and give each rank its part."""
        on_host = output.cpu()
        self._gloo._reduce_scatter_base(on_host, source.cpu(), opts).wait()
        output.copy_(on_host)
        return _complete([output])

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single

    def barrier(self, opts):
        """Wait for every rank."""
        self._gloo.barrier().wait()
        return _complete([])

    def _in_place(self, tensors, collective):
        on_host = [tensor.cpu() for tensor in tensors]
        collective(on_host).wait()
        for tensor, result in zip(tensors, on_host, strict=True):
            tensor.copy_(result)
        return _complete(tensors)
