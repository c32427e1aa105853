# SPDX-License-Identifier: Apache-2.0
"""Collectives with the signatures of Horovod's Keras API.

They differ in two ways from the functions of smdist.dataparallel.tensorflow. They return a NumPy
array instead of a tensor, and the second argument of allreduce() and reducescatter() is the name.
"""

from __future__ import annotations

from typing import Any

from smdist.dataparallel.tensorflow import collectives
from smdist.dataparallel.tensorflow.compression import Compression
from smdist.dataparallel.tensorflow.set_members import ProcessSet


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    op: Any = None,
    compression: Any = Compression.none,
    process_set: ProcessSet | None = None,
) -> Any:
    """Reduce a value over all ranks, by default to the average.

    Args:
        value: Tensor or array, whose shape must be the same on all ranks.
        name: Name by which ranks match the operations; None to match them by the order of calls.
        average: Horovod's older argument for op: True is AVERAGE, False is SUM.
        prescale_factor: Factor that multiplies the value before the reduction.
        postscale_factor: Factor that multiplies the result.
        op: Reduce operation; by default AVERAGE.
        compression: Compression.none, .fp16 or .bf16.
        process_set: Ranks that take part; by default all.

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
            process_set=process_set,
        )
    )


def allgather(value: Any, name: str | None = None, process_set: ProcessSet | None = None) -> Any:
    """Gather the values of all ranks, joined along axis 0 in the order of ranks.

    `name` is a name by which ranks match the operations, `process_set` the ranks that take part, by
    default all.

    Returns:
        A NumPy array, or a tensor inside a tf.function.
    """
    return _value(collectives.allgather(value, name=name, process_set=process_set))


def broadcast(
    value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> Any:
    """Send the value of `root_rank` to all ranks and return it.

    `name` is a name by which ranks match the operations, `process_set` the ranks that take part, by
    default all.

    Returns:
        A NumPy array, or a tensor inside a tf.function.
    """
    return _value(collectives.broadcast(value, root_rank, name=name, process_set=process_set))


def reducescatter(
    value: Any,
    name: str | None = None,
    op: Any = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Reduce a value over all ranks, and return this rank's share of the result's rows.

    `name` is a name by which ranks match the operations; `op` is the reduce operation, by default
    AVERAGE; `process_set` has the ranks that take part, by default all.

    Returns:
        A NumPy array, or a tensor inside a tf.function.
    """
    return _value(collectives.reduce_scatter(value, op=op, name=name, process_set=process_set))


def _value(tensor: Any) -> Any:
    return tensor.numpy() if hasattr(tensor, "numpy") else tensor
