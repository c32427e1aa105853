# SPDX-License-Identifier: Apache-2.0
"""All-reduce of several tensors, packed into fusion buffers (buckets).

The all-reduces of all buckets are started before the first wait. Example with the buckets
[4, 3], [2, 1] and [0], which contain the tensors with these numbers:

    start 4,3 | start 2,1 | start 0 | wait 4,3 | wait 2,1 | wait 0

In a tf.function the all-reduce of a bucket starts as soon as the tensors in the bucket are
computed. TensorFlow starts all-reduces in program order, which is the same on all ranks, so the
ranks need no negotiation. A wait blocks a TensorFlow thread. Therefore all waits come after the
last start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from smdist.dataparallel.tensorflow import op_library, row_collectives
from smdist.dataparallel.tensorflow.adasum_rows import check_ranks, combined
from smdist.dataparallel.tensorflow.buckets import BucketTensor, pack
from smdist.dataparallel.tensorflow.call_forms import Factors
from smdist.dataparallel.tensorflow.compression import Compression
from smdist.dataparallel.tensorflow.fusion_options import fusion_bytes as fusion_of_job
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.operation_names import label, next_key
from smdist.dataparallel.tensorflow.reduce_op import (
    ReduceOp,
    check_factor,
    check_gradient,
    check_number,
    engine_op,
    finished,
    times,
)
from smdist.dataparallel.tensorflow.set_members import Members, members_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceOptions:
    """Options of an all-reduce of several tensors.

    Attributes:
        op: Reduce operation.
        compression: Class with compress() and decompress().
        factors: Factor of the inputs before the reduction, and factor of the results after it.
        fusion_bytes: Bytes per bucket; None for the job's value, which is 25 MiB if not set.
        is_group: True to put all tensors of a dtype into one bucket, whatever their size.
        members: Ranks that reduce; None for all ranks.
    """

    op: ReduceOp = ReduceOp.AVERAGE
    compression: Any = Compression.none
    factors: Factors = field(default_factory=Factors)
    fusion_bytes: int | None = None
    is_group: bool = False
    members: Members | None = None


def all_reduce(tensors: Sequence[Any], reduction: ReduceOptions, checksum: int = 0) -> list[Any]:
    """Reduce dense tensors over all ranks; return the results, of the same dtypes and shapes.

    Sums and averages can be differentiated with respect to `tensors`.

    Args:
        tensors: Dense tensors, in the order of layers if they are gradients.
        reduction: Options of the all-reduce.
        checksum: A number that must be the same on all ranks; 0 for no number. An empty tensor with
            this number in its shape is also reduced, because the engine compares shapes between
            ranks.

    Raises:
        OptionError: A dtype cannot be reduced, or XLA compiles the tf.function.
        tf.errors.FailedPreconditionError: Shapes or checksums differ between ranks.
    """
    for tensor in tensors:
        check_number(reduction.op, tensor.dtype)
        check_factors(reduction, tensor.dtype)
    if not tensors:
        return []

    def reduced(*values: Any) -> Any:
        def gradient(*upstream: Any) -> Any:
            check_gradient(reduction.op, "an all-reduce")
            return all_reduce([tf.convert_to_tensor(each) for each in upstream], reduction)

        return tuple(_run(list(values), reduction, checksum)), gradient

    results = tf.custom_gradient(reduced)(*tensors)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def check_factors(reduction: ReduceOptions, dtype: Any) -> None:
    """Check that both factors of `reduction` are 1 if tensors of `dtype` contain truth values.

    Raises:
        OptionError: A factor is not 1, and `dtype` is bool.
    """
    check_factor(reduction.factors.before, dtype)
    check_factor(reduction.factors.after, dtype)


def _run(tensors: list[Any], reduction: ReduceOptions, checksum: int) -> list[Any]:
    scaled = [times(tensor, reduction.factors.before) for tensor in tensors]
    small = [reduction.compression.compress(tensor) for tensor in scaled]
    large = _exchange([tensor for tensor, _ in small], reduction, checksum)
    full = [
        reduction.compression.decompress(tensor, context)
        for tensor, (_, context) in zip(large, small, strict=True)
    ]
    return [times(tensor, reduction.factors.after) for tensor in full]


def _exchange(tensors: list[Any], reduction: ReduceOptions, checksum: int) -> list[Any]:
    op_library.check_context()
    members = reduction.members or members_of(None)
    if members.size == 1:
        return tensors
    if reduction.op is ReduceOp.ADASUM:
        check_ranks(members.size)
        return [_adaptive_sum(tensor, members) for tensor in tensors]
    buckets = pack(
        [_piece(tensor, reduction.is_group) for tensor in tensors],
        reduction.fusion_bytes or fusion_of_job(),
    )
    contents = [[tensors[number] for number in bucket] for bucket in buckets]
    if checksum:
        contents[0].append(tf.zeros([0, 0, 0, checksum], contents[0][0].dtype))
    keys = [next_key() for _ in contents]
    handles = [
        op_library.start(
            content, engine_op(reduction.op, content[0].dtype), members.group, key, label()
        )
        for content, key in zip(contents, keys, strict=True)
    ]
    results: list[Any] = [None] * len(tensors)
    # a named operation waits without blocking others
    with tf.control_dependencies([] if keys[0] else handles[-1:]):
        for bucket, content, handle, key in zip(buckets, contents, handles, keys, strict=True):
            waited = op_library.wait(handle, content, key)
            # strict=False leaves out the last result, which is the checksum's
            for number, result in zip(bucket, waited, strict=False):
                results[number] = finished(result, reduction.op, members.size)
    return results


def _adaptive_sum(tensor: Any, members: Members) -> Any:
    rows = row_collectives.gather_equal(tf.reshape(tensor, [-1]), members)
    return tf.reshape(combined(rows), tf.shape(tensor))


def _piece(tensor: Any, is_of_group: bool) -> BucketTensor:
    count = 0 if is_of_group else tensor.shape.num_elements()
    size = None if count is None else count * tensor.dtype.size
    return BucketTensor(dtype=tensor.dtype.name, size_bytes=size)
