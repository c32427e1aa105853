# SPDX-License-Identifier: Apache-2.0
"""Collectives with the signatures of Horovod's Keras API.

Unlike in `collectives`, the name is the second argument, and the result is a NumPy array.
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

    The arguments have the meaning of those of smdist.dataparallel.tensorflow.allreduce().

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
