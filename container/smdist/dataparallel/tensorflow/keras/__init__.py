# SPDX-License-Identifier: Apache-2.0
"""model.fit over all ranks, in the names of Horovod's Keras API.

import smdist.dataparallel.tensorflow.keras as hvd

hvd.init()
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
model.compile(optimizer, loss="mse")
model.fit(mine, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from typing import Any

from smdist.dataparallel.tensorflow.absent import no_such_name
from smdist.dataparallel.tensorflow.compression import Compression
from smdist.dataparallel.tensorflow.estimator import broadcast_global_variables
from smdist.dataparallel.tensorflow.keras import callbacks
from smdist.dataparallel.tensorflow.keras.loading import load_model
from smdist.dataparallel.tensorflow.keras.optimizer import DistributedOptimizer
from smdist.dataparallel.tensorflow.keras.values import (
    allgather,
    allreduce,
    broadcast,
    reducescatter,
)
from smdist.dataparallel.tensorflow.objects import allgather_object, broadcast_object
from smdist.dataparallel.tensorflow.reduce_op import Average, Max, Min, Product, Sum
from smdist.dataparallel.tensorflow.reporting import report
from smdist.dataparallel.tensorflow.variables import broadcast_variables
from smdist.dataparallel.tensorflow.world import (
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "report",
    "shutdown",
    "size",
]


def __getattr__(name: str) -> Any:
    raise no_such_name(__name__, name)
