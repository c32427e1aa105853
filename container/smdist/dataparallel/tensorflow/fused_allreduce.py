# SPDX-License-Identifier: Apache-2.0
"""Fused all-reduce of several tensors: every buffer is started before the first is waited for.

    start 4,3 | start 2,1 | start 0 | wait 4,3 | wait 2,1 | wait 0

In a tf.function a start runs as soon as its tensors are ready. TensorFlow keeps the starts
in program order, which is the same on all ranks, so ranks need no negotiation. Each wait
blocks a TensorFlow thread, so waits begin after the last start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from smdist.dataparallel.tensorflow import basics, op_library
from smdist.dataparallel.tensorflow.buckets import BucketTensor, pack
from smdist.dataparallel.tensorflow.call_forms import Factors
from smdist.dataparallel.tensorflow.compression import Compression
from smdist.dataparallel.tensorflow.fusion_options import fusion_bytes as fusion_of_job
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.reduce_op import (
    ReduceOp,
    check_factor,
    check_gradient,
    check_number,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceOptions:
    """Options of an all-reduce.

    Attributes:
        factors: Factors that multiply the inputs and the outputs.
        fusion_bytes: Bytes per buffer; None: the job's value, which is 25 MiB if not set.
        is_group: Whether there is one buffer for each dtype, whatever its size; the buffers
            then do not depend on the shapes that a rank's tf.function knows.
    """

    op: ReduceOp = ReduceOp.AVERAGE
    compression: Any = Compression.none
    factors: Factors = field(default_factory=Factors)
    fusion_bytes: int | None = None
    is_group: bool = False


def all_reduce(tensors: Sequence[Any], reduction: ReduceOptions, mark: int = 0) -> list[Any]:
    """Reduce dense tensors over all ranks, keeping their dtypes and shapes; differentiable.

    Args:
        mark: A number that must be equal on all ranks, 0 for none. It travels as the shape of
            an empty tensor, so that the engine compares it together with the shapes.

    Raises:
        OptionError: An average or a factor for integers, a dtype that cannot be reduced, or a
            tf.function compiled by XLA.
        tf.errors.InvalidArgumentError: Shapes or marks differ between ranks.
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

        return tuple(_run(list(values), reduction, mark)), gradient

    results = tf.custom_gradient(reduced)(*tensors)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def check_factors(reduction: ReduceOptions, dtype: Any) -> None:
    """Refuse a factor for integers, whose product would be rounded.

    Raises:
        OptionError: There is a factor, and `dtype` is not a floating-point type.
    """
    check_factor(reduction.factors.before, dtype)
    check_factor(reduction.factors.after, dtype)


def _run(tensors: list[Any], reduction: ReduceOptions, mark: int) -> list[Any]:
    scaled = [_times(tensor, reduction.factors.before) for tensor in tensors]
    small = [reduction.compression.compress(tensor) for tensor in scaled]
    large = _exchange([tensor for tensor, _ in small], reduction, mark)
    full = [
        reduction.compression.decompress(tensor, context)
        for tensor, (_, context) in zip(large, small, strict=True)
    ]
    return [_times(tensor, reduction.factors.after) for tensor in full]


def _exchange(tensors: list[Any], reduction: ReduceOptions, mark: int) -> list[Any]:
    op_library.check_surroundings()
    if basics.size() == 1:
        return tensors
    buckets = pack(
        [_piece(tensor, reduction.is_group) for tensor in tensors],
        reduction.fusion_bytes or fusion_of_job(),
    )
    contents = [[tensors[number] for number in bucket] for bucket in buckets]
    if mark:
        contents[0].append(tf.zeros([0, 0, 0, mark], contents[0][0].dtype))
    handles = [op_library.start(content, reduction.op.value) for content in contents]
    results: list[Any] = [None] * len(tensors)
    with tf.control_dependencies(handles[-1:]):
        for bucket, content, handle in zip(buckets, contents, handles, strict=True):
            waited = op_library.wait(handle, content)
            # the last result, the mark, is dropped
            for number, result in zip(bucket, waited, strict=False):
                results[number] = result
    return results


def _piece(tensor: Any, is_of_group: bool) -> BucketTensor:
    count = 0 if is_of_group else tensor.shape.num_elements()
    size = None if count is None else count * tensor.dtype.size
    return BucketTensor(dtype=tensor.dtype.name, size_bytes=size)


def _times(tensor: Any, factor: float) -> Any:
    return tensor if factor == 1 else tensor * tf.cast(factor, tensor.dtype)
