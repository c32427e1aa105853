# SPDX-License-Identifier: Apache-2.0
"""Data parallelism for TensorFlow 2 and Keras 3, with the functions of SMDDP and Horovod.

    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    with tf.GradientTape() as tape:
        loss = loss_fn(labels, model(images, training=True))
    tape = sdp.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)

For model.fit, use smdist.dataparallel.tensorflow.keras. TensorFlow is imported at the first use
of one of this module's names, not when this module is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from smdist.dataparallel.tensorflow.unsupported_horovod import no_such_name

if TYPE_CHECKING:
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
    from smdist.dataparallel.tensorflow.adasum_rows import check_num_rank_power_of_2
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
    from smdist.dataparallel.tensorflow.broadcast_objects import (
        allgather_object,
        broadcast_object,
        broadcast_object_fn,
    )
    from smdist.dataparallel.tensorflow.collectives import (
        allgather,
        allreduce,
        alltoall,
        barrier,
        broadcast,
        grouped_allreduce,
        oob_allreduce,
        reduce_scatter,
        reducescatter,
    )
    from smdist.dataparallel.tensorflow.compression import Compression
    from smdist.dataparallel.tensorflow.estimator import (
        BroadcastGlobalVariablesHook,
        broadcast_global_variables,
        overlap,
    )
    from smdist.dataparallel.tensorflow.grouped_collectives import (
        grouped_allgather,
        grouped_reducescatter,
    )
    from smdist.dataparallel.tensorflow.joining import join
    from smdist.dataparallel.tensorflow.keras.optimizer import DistributedOptimizer
    from smdist.dataparallel.tensorflow.keras.partial_optimizer import PartialDistributedOptimizer
    from smdist.dataparallel.tensorflow.keras.sync_batch_normalization import (
        SyncBatchNormalization,
    )
    from smdist.dataparallel.tensorflow.number_ops import (
        cuda_built,
        local_rank_op,
        local_size_op,
        rank_op,
        size_op,
    )
    from smdist.dataparallel.tensorflow.process_set_registration import (
        add_process_set,
        init,
        process_set_included_op,
        remove_process_set,
    )
    from smdist.dataparallel.tensorflow.progress import report
    from smdist.dataparallel.tensorflow.record_timeline import start_timeline, stop_timeline
    from smdist.dataparallel.tensorflow.reduce_op import (
        Adasum,
        Average,
        Max,
        Min,
        Product,
        ReduceOp,
        Sum,
    )
    from smdist.dataparallel.tensorflow.set_members import ProcessSet, global_process_set
    from smdist.dataparallel.tensorflow.tape import (
        DistributedGradientTape,
        PartialDistributedGradientTape,
    )
    from smdist.dataparallel.tensorflow.variable_broadcast import broadcast_, broadcast_variables

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "oob_allreduce",
    "overlap",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reduce_scatter",
    "reducescatter",
    "remove_process_set",
    "report",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

_NAMES_BY_MODULE = {
    "collectives": (
        "allgather",
        "allreduce",
        "alltoall",
        "barrier",
        "broadcast",
        "grouped_allreduce",
        "oob_allreduce",
        "reduce_scatter",
        "reducescatter",
    ),
    "compression": ("Compression",),
    "estimator": ("BroadcastGlobalVariablesHook", "broadcast_global_variables", "overlap"),
    "grouped_collectives": ("grouped_allgather", "grouped_reducescatter"),
    "joining": ("join",),
    "keras.optimizer": ("DistributedOptimizer",),
    "keras.partial_optimizer": ("PartialDistributedOptimizer",),
    "keras.sync_batch_normalization": ("SyncBatchNormalization",),
    "number_ops": ("cuda_built", "local_rank_op", "local_size_op", "rank_op", "size_op"),
    "broadcast_objects": ("allgather_object", "broadcast_object", "broadcast_object_fn"),
    "reduce_op": ("Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum"),
    "progress": ("report",),
    "tape": ("DistributedGradientTape", "PartialDistributedGradientTape"),
    "record_timeline": ("start_timeline", "stop_timeline"),
    "variable_broadcast": ("broadcast_", "broadcast_variables"),
    "adasum_rows": ("check_num_rank_power_of_2",),
    "set_members": ("ProcessSet", "global_process_set"),
    "process_set_registration": (
        "add_process_set",
        "init",
        "process_set_included_op",
        "remove_process_set",
    ),
    "basics": (
        "cross_rank",
        "cross_size",
        "is_homogeneous",
        "is_initialized",
        "local_rank",
        "local_size",
        "rank",
        "shutdown",
        "size",
    ),
}
_FACTS = (
    "ccl_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
)
_MODULE_OF = {
    name: f"{__name__}.{place}" for place, names in _NAMES_BY_MODULE.items() for name in names
} | dict.fromkeys(_FACTS, "smdist.dataparallel.library_facts")


def __getattr__(name: str) -> Any:
    if name == "elastic":
        return import_module(f"{__name__}.elastic")
    if name not in _MODULE_OF:
        raise no_such_name(__name__, name)
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
