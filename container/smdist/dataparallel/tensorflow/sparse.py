# SPDX-License-Identifier: Apache-2.0
"""Gradients of embeddings (IndexedSlices): made dense, or every rank's rows gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow import rows, world
from smdist.dataparallel.tensorflow.library import tf
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp, check_number
from smdist.dataparallel.tensorflow.reducing import Reduction


def is_sparse(tensor: Any) -> bool:
    """Whether these are IndexedSlices."""
    return isinstance(tensor, tf.IndexedSlices)


def as_dense(slices: Any) -> Any:
    """Rows with one index added up in a tensor of the variable's shape.

    Raises:
        OptionError: It is not known how many rows the variable has.
    """
    require(
        slices.dense_shape is not None,
        what="IndexedSlices without a dense_shape",
        why="how many rows the dense tensor has is not known",
        mend="Build them with dense_shape=, or pass sparse_as_dense=False",
    )
    total = tf.math.unsorted_segment_sum(slices.values, slices.indices, slices.dense_shape[0])
    static = tf.get_static_value(slices.dense_shape)
    return total if static is None else tf.ensure_shape(total, static)


def united(slices: Any) -> Any:
    """Rows with one index added up: Keras's optimizers take every row for the whole of it."""
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def gather(sparse: Sequence[Any], reduction: Reduction) -> list[Any]:
    """All ranks' rows of each gradient, scaled so that adding them up is the reduction.

    Raises:
        OptionError: The operation is neither a sum nor an average, or an average of integers.
    """
    require(
        reduction.op in (ReduceOp.SUM, ReduceOp.AVERAGE),
        what=f"op={reduction.op.value!r} for IndexedSlices",
        why="their rows are gathered, and added up where they are used",
        mend="Reduce with average or sum, or pass sparse_as_dense=True",
    )
    for each in sparse:
        check_number(reduction.op, each.values.dtype)
    scaled = [_scaled(each, reduction) for each in sparse]
    if world.size() == 1 or not scaled:
        return scaled
    small = [reduction.compression.compress(each.values) for each in scaled]
    flat = [
        part
        for (values, _), each in zip(small, scaled, strict=True)
        for part in (values, each.indices)
    ]
    whole = rows.gather(flat)
    return [
        tf.IndexedSlices(
            reduction.compression.decompress(whole[2 * number], small[number][1]),
            whole[2 * number + 1],
            each.dense_shape,
        )
        for number, each in enumerate(scaled)
    ]


def _scaled(slices: Any, reduction: Reduction) -> Any:
    factor = reduction.factors.before * reduction.factors.after
    if reduction.op is ReduceOp.AVERAGE:
        factor /= world.size()
    if factor == 1:
        return slices
    values = slices.values * tf.cast(factor, slices.values.dtype)
    return tf.IndexedSlices(values, slices.indices, slices.dense_shape)
