# SPDX-License-Identifier: Apache-2.0
"""model.fit over all ranks, in the names of Horovod's Keras API.

import smdist.dataparallel.tensorflow.keras as hvd

hvd.init()
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
model.compile(optimizer, loss="mse")
model.fit(mine, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

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
from smdist.dataparallel.tensorflow.reduce_op import Average, Max, Min, Product, Sum
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
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "shutdown",
    "size",
]
