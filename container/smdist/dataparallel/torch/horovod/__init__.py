# SPDX-License-Identifier: Apache-2.0
"""Functions of horovod.torch on smdist's engine, so that scripts for Horovod need a new import.

    import smdist.dataparallel.torch.horovod as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Ranks match collectives with a name by it, and must call all others in the same order. The page
"From Horovod" has all names and the differences.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from smdist.dataparallel.library_facts import (
    ccl_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from smdist.dataparallel.torch.horovod.allgather_calls import (
    allgather,
    allgather_async,
    grouped_allgather,
    grouped_allgather_async,
)
from smdist.dataparallel.torch.horovod.allreduce_calls import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from smdist.dataparallel.torch.horovod.alltoall_calls import alltoall, alltoall_async
from smdist.dataparallel.torch.horovod.batch_statistics import SyncBatchNorm
from smdist.dataparallel.torch.horovod.broadcast_calls import (
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    join,
)
from smdist.dataparallel.torch.horovod.build_facts import cuda_built
from smdist.dataparallel.torch.horovod.compressors import Compression
from smdist.dataparallel.torch.horovod.current_job import (
    add_process_set,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
)
from smdist.dataparallel.torch.horovod.handles import poll, synchronize
from smdist.dataparallel.torch.horovod.hvd_errors import (
    GradientRaceError,
    HorovodInternalError,
    HorovodMismatchError,
)
from smdist.dataparallel.torch.horovod.object_exchange import allgather_object, broadcast_object
from smdist.dataparallel.torch.horovod.process_set import ProcessSet, global_process_set
from smdist.dataparallel.torch.horovod.reducescatter_calls import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from smdist.dataparallel.torch.horovod.reducing_optimizer import DistributedOptimizer
from smdist.dataparallel.torch.horovod.reductions import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
)
from smdist.dataparallel.torch.horovod.refused_names import no_such_name
from smdist.dataparallel.torch.horovod.sparse_calls import sparse_allreduce_async
from smdist.dataparallel.torch.horovod.state_broadcast import (
    broadcast_optimizer_state,
    broadcast_parameters,
)
from smdist.dataparallel.torch.horovod.timeline_calls import start_timeline, stop_timeline

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "GradientRaceError",
    "HorovodInternalError",
    "HorovodMismatchError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def __getattr__(name: str) -> Any:
    """Return the module `elastic`, which is imported at its first use.

    Raises:
        AttributeError: The module does not have the name; with the reason if there is one.
    """
    if name == "elastic":
        return import_module(f"{__name__}.elastic")
    raise no_such_name(__name__, name, __all__)
