# SPDX-License-Identifier: Apache-2.0
"""Reduction of IndexedSlices, the gradients of embeddings: made dense, or gathered by rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow import basics, row_collectives
from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp, check_number


def is_sparse(tensor: Any) -> bool:
    """Return whether the tensor is IndexedSlices."""
    return isinstance(tensor, tf.IndexedSlices)


def as_dense(slices: Any) -> Any:
    """Return a dense tensor of the variable's shape, with rows of the same index added up.

    Raises:
        OptionError: The number of rows of the variable is not known.
    """
    require(
        slices.dense_shape is not None,
        what="IndexedSlices without a dense_shape",
        why="how many rows the dense tensor has is not known",
        hint="Build them with dense_shape=, or pass sparse_as_dense=False",
    )
    total = tf.math.unsorted_segment_sum(slices.values, slices.indices, slices.dense_shape[0])
    static = tf.get_static_value(slices.dense_shape)
    return total if static is None else tf.ensure_shape(total, static)


def united(slices: Any) -> Any:
    """Return slices with unique indices: Keras's optimizers do not add up equal ones."""
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def gather(sparse: Sequence[Any], reduction: ReduceOptions) -> list[Any]:
    """Return the rows of all ranks for each gradient, scaled so that their sum is the reduction.

    Raises:
        OptionError: The operation is neither a sum nor an average, or is an average of integers.
    """
    require(
        reduction.op in (ReduceOp.SUM, ReduceOp.AVERAGE),
        what=f"op={reduction.op.value!r} for IndexedSlices",
        why="their rows are gathered, and added up where they are used",
        hint="Reduce with average or sum, or pass sparse_as_dense=True",
    )
    for each in sparse:
        check_number(reduction.op, each.values.dtype)
    scaled = [_scaled(each, reduction) for each in sparse]
    if basics.size() == 1 or not scaled:
        return scaled
    small = [reduction.compression.compress(each.values) for each in scaled]
    flat = [
        part
        for (values, _), each in zip(small, scaled, strict=True)
        for part in (values, each.indices)
    ]
    whole = row_collectives.gather(flat)
    return [
        tf.IndexedSlices(
            reduction.compression.decompress(whole[2 * number], small[number][1]),
            whole[2 * number + 1],
            each.dense_shape,
        )
        for number, each in enumerate(scaled)
    ]


def _scaled(slices: Any, reduction: ReduceOptions) -> Any:
    factor = reduction.factors.before * reduction.factors.after
    if reduction.op is ReduceOp.AVERAGE:
        factor /= basics.size()
    if factor == 1:
        return slices
    values = slices.values * tf.cast(factor, slices.values.dtype)
    return tf.IndexedSlices(values, slices.indices, slices.dense_shape)
