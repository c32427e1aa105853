# SPDX-License-Identifier: Apache-2.0
"""Data parallelism for Keras model.fit, with the functions of Horovod's Keras API.

import smdist.dataparallel.tensorflow.keras as hvd

hvd.init()
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
model.compile(optimizer, loss="mse")
model.fit(dataset, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

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
from smdist.dataparallel.tensorflow.basics import (
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from smdist.dataparallel.tensorflow.broadcast_objects import allgather_object, broadcast_object
from smdist.dataparallel.tensorflow.compression import Compression
from smdist.dataparallel.tensorflow.estimator import broadcast_global_variables
from smdist.dataparallel.tensorflow.keras import callbacks
from smdist.dataparallel.tensorflow.keras.model_loading import load_model
from smdist.dataparallel.tensorflow.keras.optimizer import DistributedOptimizer
from smdist.dataparallel.tensorflow.keras.partial_optimizer import PartialDistributedOptimizer
from smdist.dataparallel.tensorflow.keras.sync_batch_normalization import SyncBatchNormalization
from smdist.dataparallel.tensorflow.keras.value_collectives import (
    allgather,
    allreduce,
    broadcast,
    reducescatter,
)
from smdist.dataparallel.tensorflow.number_ops import cuda_built
from smdist.dataparallel.tensorflow.process_set_registration import (
    add_process_set,
    init,
    remove_process_set,
)
from smdist.dataparallel.tensorflow.progress import report
from smdist.dataparallel.tensorflow.record_timeline import start_timeline, stop_timeline
from smdist.dataparallel.tensorflow.reduce_op import Adasum, Average, Max, Min, Product, Sum
from smdist.dataparallel.tensorflow.set_members import ProcessSet, global_process_set
from smdist.dataparallel.tensorflow.unsupported_horovod import no_such_name
from smdist.dataparallel.tensorflow.variable_broadcast import broadcast_variables

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "report",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name: str) -> Any:
    if name == "elastic":
        return import_module(f"{__name__}.elastic")
    raise no_such_name(__name__, name)
