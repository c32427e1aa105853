# SPDX-License-Identifier: Apache-2.0
"""Reduction of IndexedSlices, TensorFlow's sparse gradients of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow import basics, row_collectives
from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp, check_number


def is_sparse(tensor: Any) -> bool:
    """Return True if the tensor is an IndexedSlices object."""
    return isinstance(tensor, tf.IndexedSlices)


def to_dense(slices: Any) -> Any:
    """Convert IndexedSlices to a dense tensor of the variable's shape.

    Rows with the same index are added.

    Raises:
        OptionError: The number of rows of the variable is not known.
    """
    require(
        slices.dense_shape is not None,
        what="a gradient is IndexedSlices without dense_shape",
        why="without it the number of rows of the dense tensor is not known",
        hint="Create the IndexedSlices with dense_shape=, or pass sparse_as_dense=False",
        about="sparse_as_dense",
    )
    total = tf.math.unsorted_segment_sum(slices.values, slices.indices, slices.dense_shape[0])
    static = tf.get_static_value(slices.dense_shape)
    return total if static is None else tf.ensure_shape(total, static)


def merge_duplicates(slices: Any) -> Any:
    """Return IndexedSlices in which each index occurs once; rows of the same index are summed.

    Keras's optimizers do not sum such rows themselves.
    """
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def gather(sparse: Sequence[Any], reduction: ReduceOptions) -> list[Any]:
    """Return each sparse gradient as IndexedSlices with the rows and indices of all ranks.

    For an average the rows are divided by the number of ranks. If rows with the same index are then
    added, the sum is the reduced row of the dense gradient.

    Args:
        sparse: IndexedSlices of this rank.
        reduction: Options of the reduction; factors multiply the rows, too.

    Raises:
        OptionError: The operation is neither a sum nor an average, or is an average of integers.
    """
    require(
        reduction.op in (ReduceOp.SUM, ReduceOp.AVERAGE),
        what=f"IndexedSlices cannot be reduced with op={reduction.op.value!r}",
        why="their rows are gathered from all ranks, and rows of one index are then added",
        hint="Reduce with average or sum, or pass sparse_as_dense=True",
        about="op",
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
