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
    from smdist.dataparallel.tensorflow.basics import (
        init,
        is_initialized,
        local_rank,
        local_size,
        rank,
        shutdown,
        size,
    )
    from smdist.dataparallel.tensorflow.broadcast_objects import allgather_object, broadcast_object
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
    from smdist.dataparallel.tensorflow.keras.optimizer import DistributedOptimizer
    from smdist.dataparallel.tensorflow.progress import report
    from smdist.dataparallel.tensorflow.reduce_op import Average, Max, Min, Product, ReduceOp, Sum
    from smdist.dataparallel.tensorflow.tape import DistributedGradientTape
    from smdist.dataparallel.tensorflow.variable_broadcast import broadcast_variables

__all__ = [
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "oob_allreduce",
    "overlap",
    "rank",
    "reduce_scatter",
    "reducescatter",
    "report",
    "shutdown",
    "size",
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
    "keras.optimizer": ("DistributedOptimizer",),
    "broadcast_objects": ("allgather_object", "broadcast_object"),
    "reduce_op": ("Average", "Max", "Min", "Product", "ReduceOp", "Sum"),
    "progress": ("report",),
    "tape": ("DistributedGradientTape",),
    "variable_broadcast": ("broadcast_variables",),
    "basics": ("init", "is_initialized", "local_rank", "local_size", "rank", "shutdown", "size"),
}
_MODULE_OF = {name: place for place, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise no_such_name(__name__, name)
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
