# SPDX-License-Identifier: Apache-2.0
"""Collectives with the signatures of Horovod's Keras API.

They differ in two ways from the functions of smdist.dataparallel.tensorflow. They return a NumPy
array instead of a tensor, and the second argument of allreduce() and reducescatter() is the name.
"""

from __future__ import annotations

from typing import Any

from smdist.dataparallel.tensorflow import collectives
from smdist.dataparallel.tensorflow.compression import Compression


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    op: Any = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce a value over all ranks, by default to the average.

    Args:
        value: Tensor or array, whose shape must be the same on all ranks.
        name: Name in the graph.
        average: Horovod's older argument for op: True is AVERAGE, False is SUM.
        prescale_factor: Factor that multiplies the value before the reduction.
        postscale_factor: Factor that multiplies the result.
        op: Reduce operation; by default AVERAGE, which needs floats.
        compression: Compression.none, .fp16 or .bf16.

    Returns:
        A NumPy array, or a tensor inside a tf.function.
    """
    return _value(
        collectives.allreduce(
            value,
            average=average,
            op=op,
            name=name,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compression,
        )
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Gather the values of all ranks, joined along axis 0 in the order of ranks.

    `name` is the name in the graph.

    Returns:
        A NumPy array, or a tensor inside a tf.function.
    """
    return _value(collectives.allgather(value, name=name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Send the value of `root_rank` to all ranks and return it.

    `name` is the name in the graph.

    Returns:
        A NumPy array, or a tensor inside a tf.function.
    """
    return _value(collectives.broadcast(value, root_rank, name=name))


def reducescatter(value: Any, name: str | None = None, op: Any = None) -> Any:
    """Reduce a value over all ranks, and return this rank's share of the result's rows.

    `name` is the name in the graph; `op` is the reduce operation, by default AVERAGE.

    Returns:
        A NumPy array, or a tensor inside a tf.function.
    """
    return _value(collectives.reduce_scatter(value, op=op, name=name))


def _value(tensor: Any) -> Any:
    return tensor.numpy() if hasattr(tensor, "numpy") else tensor
