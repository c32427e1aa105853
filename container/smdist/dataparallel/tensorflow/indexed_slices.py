# SPDX-License-Identifier: Apache-2.0
"""Reduction of IndexedSlices, TensorFlow's sparse gradients of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow import row_collectives
from smdist.dataparallel.tensorflow.fused_allreduce import (
    ReduceOptions,
    all_reduce,
    check_factors,
)
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.operation_names import add_rows_to_label
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp, check_number, times
from smdist.dataparallel.tensorflow.set_members import Members, members_of

_SEGMENTS: Final = {
    ReduceOp.MIN: tf.math.unsorted_segment_min,
    ReduceOp.MAX: tf.math.unsorted_segment_max,
    ReduceOp.PRODUCT: tf.math.unsorted_segment_prod,
}


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


def reduce_group(tensors: Sequence[Any], reduction: ReduceOptions) -> list[Any]:
    """Reduce dense tensors and IndexedSlices over all ranks; return the results in their order.

    Raises:
        OptionError: A dtype cannot be reduced, or IndexedSlices are reduced with Adasum.
    """
    slices = [_as_tensors(each) for each in tensors if is_sparse(each)]
    for each in slices:
        check_factors(reduction, each.values.dtype)
    whole = [tf.convert_to_tensor(each) for each in tensors if not is_sparse(each)]
    dense = iter(all_reduce(whole, reduction))
    sparse = iter(gather(slices, reduction) if slices else ())
    return [next(sparse if is_sparse(each) else dense) for each in tensors]


def _as_tensors(slices: Any) -> Any:
    """Return IndexedSlices of tensors: TensorFlow accepts lists, which have no dtype."""
    if tf.is_tensor(slices.values) and tf.is_tensor(slices.indices):
        return slices
    values, indices = map(tf.convert_to_tensor, (slices.values, slices.indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def gather(sparse: Sequence[Any], reduction: ReduceOptions) -> list[Any]:
    """Return each sparse gradient as IndexedSlices with the rows and indices of all ranks.

    For an average the rows are divided by the number of ranks; quotients of integers are floats,
    as in Horovod. If rows with the same index are then added, the sum is the reduced row of the
    dense gradient. For a minimum, maximum or product the rows of each index are reduced to one,
    over the ranks that have a row of this index.

    Args:
        sparse: IndexedSlices of this rank.
        reduction: Options of the reduction; factors multiply the rows, too.

    Raises:
        OptionError: The operation is Adasum.
    """
    require(
        reduction.op is not ReduceOp.ADASUM,
        what=f"IndexedSlices cannot be reduced with op={reduction.op.value!r}",
        why="Adasum needs the dot products of whole tensors, and ranks have different rows",
        hint="Reduce with another op, or pass sparse_as_dense=True",
        about="op",
    )
    for each in sparse:
        check_number(reduction.op, each.values.dtype)
        add_rows_to_label(each.values)
    members = reduction.members or members_of(None)
    scaled = [_scaled(each, reduction, members.size) for each in sparse]
    is_alone = members.size == 1 or not scaled
    whole = scaled if is_alone else _joined(scaled, reduction, members)
    return [_finished(each, reduction, members.size) for each in whole]


def _joined(scaled: Sequence[Any], reduction: ReduceOptions, members: Members) -> list[Any]:
    small = [reduction.compression.compress(each.values) for each in scaled]
    flat = [
        part
        for (values, _), each in zip(small, scaled, strict=True)
        for part in (values, each.indices)
    ]
    whole = row_collectives.gather(flat, members)
    return [
        tf.IndexedSlices(
            reduction.compression.decompress(whole[2 * number], small[number][1]),
            whole[2 * number + 1],
            each.dense_shape,
        )
        for number, each in enumerate(scaled)
    ]


def _finished(slices: Any, reduction: ReduceOptions, size: int) -> Any:
    if reduction.op is ReduceOp.AVERAGE and slices.values.dtype.is_integer:
        quotients = tf.math.truediv(slices.values, tf.cast(size, slices.values.dtype))
        return tf.IndexedSlices(quotients, slices.indices, slices.dense_shape)
    if reduction.op not in _SEGMENTS:
        return slices
    indices, places = tf.unique(slices.indices)
    values = _SEGMENTS[reduction.op](slices.values, places, tf.size(indices))
    return tf.IndexedSlices(times(values, reduction.factors.after), indices, slices.dense_shape)


def _scaled(slices: Any, reduction: ReduceOptions, size: int) -> Any:
    factor = reduction.factors.before
    if reduction.op not in _SEGMENTS:
        factor *= reduction.factors.after
    if reduction.op is ReduceOp.AVERAGE and not slices.values.dtype.is_integer:
        factor /= size
    values = times(slices.values, factor)
    return tf.IndexedSlices(values, slices.indices, slices.dense_shape)
