# SPDX-License-Identifier: Apache-2.0
"""Collectives on tensors, eagerly and in tf.function, with gradients.

All ranks must call the same collectives in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow import (
    basics,
    call_forms,
    indexed_slices,
    op_library,
    row_collectives,
    setup_hints,
)
from smdist.dataparallel.tensorflow.call_forms import Factors
from smdist.dataparallel.tensorflow.compression import Compression, check_compression
from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions, all_reduce, check_factors
from smdist.dataparallel.tensorflow.op_library import as_written, tf
from smdist.dataparallel.tensorflow.reduce_op import (
    ReduceOp,
    as_op,
    check_average,
    check_moved,
    check_number,
)
from smdist.dataparallel.tensorflow.variable_broadcast import check_root


@as_written
def allreduce(
    tensor: Any,
    *positional: Any,
    average: bool | None = None,
    op: Any = None,
    param_index: int | None = None,
    num_params: int | None = None,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    device_dense: str = "",
    device_sparse: str = "",
    name: str | None = None,
) -> Any:
    """Reduce a tensor over all ranks, called as in SMDDP or as in Horovod (call_forms.py).

    Args:
        tensor: Tensor of any shape, the same on all ranks, or IndexedSlices, whose rows are
            gathered.
        average: Horovod's older argument for op: True is AVERAGE, False is SUM.
        op: Reduce operation; default AVERAGE, which is for floats.
        param_index: SMDDP's number of this tensor, 0 to num_params - 1.
        name: Name in the graph; ranks may use different names.

    Raises:
        OptionError: The call mixes both forms or fits both; an average or a factor
            for integers; a dtype that cannot be reduced.
        tf.errors.OpError: Shapes differ between ranks, or a rank is lost.
    """
    named = {"average": average, "op": op, "param_index": param_index, "num_params": num_params}
    positional, named = call_forms.with_last_named(positional, named | {"compression": compression})
    chosen = call_forms.resolve(positional, named)
    call_forms.check_devices(device_dense=device_dense, device_sparse=device_sparse)
    factors = Factors(before=prescale_factor, after=postscale_factor)
    with tf.name_scope(name or "smdist_allreduce"):
        return _reduced(tensor, _reduction(chosen, named["compression"], factors))


@as_written
def grouped_allreduce(
    tensors: Sequence[Any],
    *,
    op: Any = None,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce several dense tensors over all ranks, in one buffer for each dtype.

    Raises:
        OptionError: An average or a factor for integers, or an unknown op.
        tf.errors.OpError: Shapes differ between ranks, or a rank is lost.
    """
    setup_hints.note(setup_hints.BY_HAND)
    factors = Factors(before=prescale_factor, after=postscale_factor)
    reduction = replace(_reduction(as_op(op), compression, factors), is_group=True)
    return all_reduce([tf.convert_to_tensor(tensor) for tensor in tensors], reduction)


@as_written
def oob_allreduce(tensor: Any, compression: Any = Compression.none, op: Any = None) -> Any:
    """Reduce a tensor that is not a gradient, such as a loss: SMDDP's name for allreduce().

    Raises:
        OptionError: An average of integers, or an unknown op.
    """
    return allreduce(tensor, op=op, compression=compression)


@as_written
def allgather(tensor: Any, name: str | None = None) -> Any:
    """Return the rows of all ranks, in the order of ranks.

    Args:
        tensor: [rows, ...]; the number of rows may differ between ranks.

    Returns:
        [sum of rows, ...].

    Raises:
        OptionError: The tensor is a scalar, which has no rows, or holds strings.
    """
    with tf.name_scope(name or "smdist_allgather"):
        value = _rows(tensor, "allgather")
        return value if basics.size() == 1 else row_collectives.gather([value])[0]


@as_written
def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the tensor of `root_rank`; shape and dtype are the same on all ranks.

    Raises:
        OptionError: The root rank does not exist, or the tensor holds strings.
    """
    check_root(root_rank)
    with tf.name_scope(name or "smdist_broadcast"):
        value = _movable(tensor)
        return value if basics.size() == 1 else row_collectives.broadcast(value, root_rank)


@as_written
def alltoall(tensor: Any, splits: Any = None, name: str | None = None) -> Any:
    """Send each rank its part of the rows.

    Args:
        tensor: [rows, ...].
        splits: Number of rows for each rank, integers [size]; None: equal parts.

    Returns:
        The received rows, in the order of ranks; with `splits` also the number of rows from
        each rank, [size].

    Raises:
        OptionError: The tensor is a scalar, which has no rows, or holds strings; `splits` are not
            integers, or not one for each rank.
        tf.errors.InvalidArgumentError: The rows cannot be divided in this way.
    """
    with tf.name_scope(name or "smdist_alltoall"):
        value = _rows(tensor, "alltoall")
        sent = _equal_rows(value) if splits is None else _counts(splits, value)
        if basics.size() == 1:
            came, received = value, sent
        else:
            came, received = row_collectives.exchange(value, sent)
        return came if splits is None else (came, received)


@as_written
def reduce_scatter(tensor: Any, op: Any = None, name: str | None = None) -> Any:
    """Return this rank's share of the rows, reduced over all ranks.

    Args:
        tensor: [rows, ...], the same shape on all ranks; size divides rows.
        op: Reduce operation; default AVERAGE.

    Returns:
        [rows / size, ...].

    Raises:
        OptionError: The tensor is a scalar, an average of integers, or an unknown op.
        tf.errors.InvalidArgumentError: The number of ranks does not divide rows.
    """
    with tf.name_scope(name or "smdist_reduce_scatter"):
        value, chosen = _rows(tensor, "reduce_scatter"), as_op(op)
        check_number(chosen, value.dtype)
        with tf.control_dependencies([_equal_rows(value)]):
            return row_collectives.scatter_reduced(tf.identity(value), chosen)


reducescatter = reduce_scatter  # Horovod's name


@as_written
def barrier() -> None:
    """Wait until every rank has arrived."""
    if basics.size() == 1:
        return
    here = row_collectives.barrier()
    if not tf.executing_eagerly():  # TensorFlow may not prune an assertion
        tf.debugging.assert_non_negative(tf.size(here))


def _reduction(op: ReduceOp, compression: Any, factors: Factors) -> ReduceOptions:
    return ReduceOptions(op=op, compression=check_compression(compression), factors=factors)


def _reduced(tensor: Any, reduction: ReduceOptions) -> Any:
    if not indexed_slices.is_sparse(tensor):
        dense = tf.convert_to_tensor(tensor)
        if dense.shape.rank != 0:  # a scalar is a loss or a count, not a gradient
            setup_hints.note(setup_hints.BY_HAND)
        return all_reduce([dense], reduction)[0]
    setup_hints.note(setup_hints.BY_HAND)
    check_average(reduction.op, tensor.values.dtype)
    check_factors(reduction, tensor.values.dtype)
    return indexed_slices.gather([tensor], reduction)[0]


def _movable(tensor: Any) -> Any:
    op_library.check_surroundings()
    value = tf.convert_to_tensor(tensor)
    check_moved(value.dtype)
    return value


def _rows(tensor: Any, name: str) -> Any:
    setup_hints.note(setup_hints.BY_HAND)
    value = _movable(tensor)
    require(
        value.shape.rank != 0,
        what=f"{name}() got a scalar",
        why="it moves rows, and a scalar has none",
        hint="Pass tf.reshape(tensor, [1])",
    )
    return value


def _equal_rows(value: Any) -> Any:
    size = basics.size()
    count = tf.shape(value, out_type=tf.int64)[0]
    tf.debugging.assert_equal(
        count % size,
        tf.zeros([], tf.int64),
        f"the number of rows is not a multiple of {size} ranks",
    )
    return tf.fill([size], count // size)


def _counts(splits: Any, value: Any) -> Any:
    given, size = tf.convert_to_tensor(splits), basics.size()
    require(
        given.shape.is_compatible_with([size]),
        what=f"splits of alltoall() has the shape {given.shape}",
        why=f"it says how many rows each rank gets, and the job's size is {size}",
        hint="Pass an integer for each rank",
    )
    require(
        given.dtype.is_integer,
        what=f"splits of alltoall() is {given.dtype.name}",
        why="it counts rows",
        hint="Pass an integer for each rank",
    )
    return _dividing(tf.cast(given, tf.int64), value)


def _dividing(counts: Any, value: Any) -> Any:
    """Return the counts, with a check in the graph that they sum up to the number of rows."""
    hint = "each row goes to one rank. Pass counts that sum up to the rows of the tensor"
    total, count = tf.reduce_sum(counts), tf.shape(value, out_type=tf.int64)[0]
    checks = [
        tf.debugging.assert_non_negative(counts, f"splits of alltoall() is below zero: {hint}"),
        tf.debugging.assert_equal(total, count, f"splits of alltoall() does not fit: {hint}"),
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.identity(counts)
