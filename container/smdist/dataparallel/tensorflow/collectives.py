# SPDX-License-Identifier: Apache-2.0
"""Collectives on tensors, for eager code and tf.function, with gradients.

Collectives without a name must be called in the same order on all ranks; those with a name may be
called in any order (operation_names.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow import (
    call_forms,
    indexed_slices,
    op_library,
    row_collectives,
    setup_hints,
)
from smdist.dataparallel.tensorflow.call_forms import Factors
from smdist.dataparallel.tensorflow.compression import Compression, check_compression
from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions, all_reduce
from smdist.dataparallel.tensorflow.op_library import tf, without_autograph
from smdist.dataparallel.tensorflow.operation_names import add_rows_to_label
from smdist.dataparallel.tensorflow.operation_names import named as match_by_name
from smdist.dataparallel.tensorflow.reduce_op import (
    ReduceOp,
    as_op,
    check_factor,
    check_moved,
    check_number,
    times,
)
from smdist.dataparallel.tensorflow.set_members import ProcessSet, members_of


@without_autograph
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
    process_set: ProcessSet | None = None,
) -> Any:
    """Reduce a tensor over all ranks and return the result, equal on all ranks.

    The arguments are those of SMDDP or those of Horovod.

    Args:
        tensor: Dense tensor, whose shape must be the same on all ranks, or IndexedSlices, whose
            rows are gathered from all ranks.
        positional: SMDDP's param_index, num_params, compression and op; or Horovod's average.
        average: Horovod's older argument for op: True is AVERAGE, False is SUM.
        op: Reduce operation; by default AVERAGE.
        param_index: SMDDP's number of this tensor, 0 to num_params - 1; only checked.
        num_params: SMDDP's number of tensors; only checked.
        compression: Compression.none, .fp16 or .bf16.
        prescale_factor: Factor that multiplies the tensor before the reduction.
        postscale_factor: Factor that multiplies the result.
        device_dense: Horovod's argument; must be empty.
        device_sparse: Horovod's argument; must be empty.
        name: Name by which ranks match the operations, the same on all ranks; None to match them
            by the order of the calls.
        process_set: Ranks that take part; by default all.

    Raises:
        OptionError: The call mixes SMDDP's and Horovod's arguments, or could be either; the dtype
            cannot be reduced; this rank is not in the process set.
        tf.errors.OpError: Shapes differ between ranks, or a rank is lost.
    """
    named = {"average": average, "op": op, "param_index": param_index, "num_params": num_params}
    positional, named = call_forms.name_last_arguments(
        positional, named | {"compression": compression}
    )
    chosen = call_forms.resolve(positional, named)
    call_forms.check_devices(device_dense=device_dense, device_sparse=device_sparse)
    factors = Factors(before=prescale_factor, after=postscale_factor)
    compression = check_compression(named["compression"])
    members = members_of(process_set, "allreduce")
    reduction = ReduceOptions(op=chosen, compression=compression, factors=factors, members=members)
    with match_by_name(name, "smdist_allreduce"):
        return _reduced(tensor, reduction)


@without_autograph
def grouped_allreduce(
    tensors: Sequence[Any],
    *,
    op: Any = None,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[Any]:
    """Reduce several tensors over all ranks; return the results in the same order.

    The dense tensors of each dtype are sent in one buffer.

    Args:
        tensors: Dense tensors, whose shapes must be the same on all ranks, and IndexedSlices, whose
            rows are gathered from all ranks.
        op: Reduce operation; by default AVERAGE.
        compression: Compression.none, .fp16 or .bf16.
        prescale_factor: Factor that multiplies the tensors before the reduction.
        postscale_factor: Factor that multiplies the results.
        average: Horovod's older argument for op: True is AVERAGE, False is SUM.
        device_dense: Horovod's argument; must be empty.
        device_sparse: Horovod's argument; must be empty.
        name: Name by which ranks match the operations, the same on all ranks; None to match them
            by the order of the calls.
        process_set: Ranks that take part; by default all.

    Raises:
        OptionError: A dtype cannot be reduced, the op is unknown, or both op and average are given.
        tf.errors.OpError: Shapes differ between ranks, or a rank is lost.
    """
    setup_hints.note(setup_hints.MANUAL)
    call_forms.check_devices(device_dense=device_dense, device_sparse=device_sparse)
    unused = {"param_index": None, "num_params": None}
    chosen = call_forms.resolve((), {"average": average, "op": op, **unused})
    factors = Factors(before=prescale_factor, after=postscale_factor)
    reduction = ReduceOptions(
        op=chosen,
        compression=check_compression(compression),
        factors=factors,
        is_group=True,
        members=members_of(process_set, "grouped_allreduce"),
    )
    with match_by_name(name, "smdist_grouped_allreduce"):
        return indexed_slices.reduce_group(tensors, reduction)


@without_autograph
def oob_allreduce(tensor: Any, compression: Any = Compression.none, op: Any = None) -> Any:
    """Reduce a tensor over all ranks: SMDDP's allreduce() for values such as a loss.

    Args:
        tensor: Tensor, whose shape must be the same on all ranks.
        compression: Compression.none, .fp16 or .bf16.
        op: Reduce operation; by default AVERAGE.

    Raises:
        OptionError: The dtype cannot be reduced, or the op is unknown.
    """
    return allreduce(tensor, op=op, compression=compression)


@without_autograph
def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet | None = None) -> Any:
    """Gather the tensors of all ranks and return them joined along axis 0, in order of ranks.

    Args:
        tensor: Tensor [rows, ...]; the number of rows may differ between ranks.
        name: Name by which ranks match the operations, the same on all ranks; None to match them
            by the order of the calls.
        process_set: Ranks that take part; by default all.

    Returns:
        Tensor [sum of rows over all ranks, ...].

    Raises:
        OptionError: The tensor is a scalar, which has no rows, or contains strings.
    """
    members = members_of(process_set, "allgather")
    with match_by_name(name, "smdist_allgather"):
        value = check_rows(tensor, "allgather")
        return value if members.size == 1 else row_collectives.gather([value], members)[0]


@without_autograph
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Send the tensor of `root_rank` to all ranks and return it.

    Args:
        tensor: The tensor to send; on other ranks any tensor of the same shape and dtype.
        root_rank: The rank that sends.
        name: Name by which ranks match the operations, the same on all ranks; None to match them
            by the order of the calls.
        process_set: Ranks that take part; by default all.

    Raises:
        OptionError: The root rank does not exist, or the tensor contains strings.
    """
    members = members_of(process_set, "broadcast")
    members.place_of(root_rank)
    with match_by_name(name, "smdist_broadcast"):
        value = _movable(tensor)
        return value if members.size == 1 else row_collectives.broadcast(value, root_rank, members)


@without_autograph
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Send a part of the tensor's rows to each rank, and return the rows received from all.

    Args:
        tensor: Tensor [rows, ...]; the first part is sent to rank 0, and so on.
        splits: Number of rows for each rank, integers [size]; None for equal parts.
        name: Name by which ranks match the operations, the same on all ranks; None to match them
            by the order of the calls.
        process_set: Ranks that take part; by default all.

    Returns:
        The received rows, in the order of ranks. If `splits` is given, the result is a pair of
        the received rows and the number of rows from each rank, int64 [size].

    Raises:
        OptionError: The tensor is a scalar, which has no rows, or contains strings; `splits` are
            not integers, or not one for each rank.
        tf.errors.InvalidArgumentError: The sum of `splits` is not the number of rows; without
            `splits`, the number of ranks does not divide the number of rows.
    """
    members = members_of(process_set, "alltoall")
    with match_by_name(name, "smdist_alltoall"):
        value = check_rows(tensor, "alltoall")
        size = members.size
        sent = _equal_rows(value, size) if splits is None else _counts(splits, value, size)
        if size == 1:
            rows, received = value, sent
        else:
            rows, received = row_collectives.exchange(value, sent, members)
        return rows if splits is None else (rows, received)


@without_autograph
def reduce_scatter(
    tensor: Any,
    op: Any = None,
    name: str | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = Compression.none,
    device_dense: str = "",
    process_set: ProcessSet | None = None,
) -> Any:
    """Reduce a tensor over all ranks, and return this rank's share of the result's rows.

    Args:
        tensor: Tensor [rows, ...] of equal shape on all ranks.
        op: Reduce operation; by default AVERAGE.
        name: Name by which ranks match the operations, the same on all ranks; None to match them
            by the order of the calls.
        process_set: Ranks that take part; by default all.
        prescale_factor: Factor that multiplies the tensor before the reduction.
        postscale_factor: Factor that multiplies the result.
        compression: Compression.none, .fp16 or .bf16.
        device_dense: Horovod's argument; must be empty.
        process_set: Ranks that take part; by default all.

    Returns:
        Tensor [rows / size, ...]: the first rows on rank 0, and so on. If the number of ranks does
        not divide the number of rows, the first ranks get one row more.

    Raises:
        OptionError: The tensor is a scalar, the op is unknown or Adasum, or the dtype cannot be
            reduced.
    """
    members, chosen = members_of(process_set, "reducescatter"), as_op(op)
    call_forms.check_devices(device_dense=device_dense)
    require(
        chosen is not ReduceOp.ADASUM,
        what="op is 'adasum' for a reduce_scatter",
        why="Adasum needs the dot products of whole tensors, and each rank gets a part",
        hint="Pass op=ReduceOp.AVERAGE or op=ReduceOp.SUM",
        about="op",
        kind="unsupported",
    )
    with match_by_name(name, "smdist_reducescatter"):
        value = check_rows(tensor, "reduce_scatter")
        check_number(chosen, value.dtype)
        for factor in (prescale_factor, postscale_factor):
            check_factor(factor, value.dtype)
        small, context = check_compression(compression).compress(times(value, prescale_factor))
        small = row_collectives.scatter_reduced(small, chosen, members)
        return times(compression.decompress(small, context), postscale_factor)


reducescatter = reduce_scatter  # Horovod's name


@without_autograph
def barrier(process_set: ProcessSet | None = None, name: str | None = None) -> Any:
    """Wait until all ranks have called this function.

    Args:
        process_set: Ranks that take part; by default all.
        name: Name by which ranks match it; None to match it by the order of the calls.

    Returns:
        A tensor in the graph of a session, which must fetch it; otherwise None.
    """
    members = members_of(process_set, "barrier")
    with match_by_name(name, "smdist_barrier"):
        done = tf.zeros([0]) if members.size == 1 else row_collectives.barrier(members)
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return tf.size(done)
    if not tf.executing_eagerly():  # the assertion keeps TensorFlow from pruning the barrier
        tf.debugging.assert_non_negative(tf.size(done))
    return None


def _reduced(tensor: Any, reduction: ReduceOptions) -> Any:
    if not indexed_slices.is_sparse(tensor):
        dense = tf.convert_to_tensor(tensor)
        if dense.shape.rank != 0:  # a scalar is a loss or a count, not a gradient
            setup_hints.note(setup_hints.MANUAL)
        return all_reduce([dense], reduction)[0]
    setup_hints.note(setup_hints.MANUAL)
    return indexed_slices.reduce_group([tensor], reduction)[0]


def _movable(tensor: Any) -> Any:
    op_library.check_context()
    value = tf.convert_to_tensor(tensor)
    check_moved(value.dtype)
    return value


def check_rows(tensor: Any, name: str) -> Any:
    """Return a tensor, or what can be converted to one, after a check that it has rows.

    Args:
        tensor: Tensor [rows, ...].
        name: Name of the caller, for the error.

    Raises:
        OptionError: The tensor is a scalar, or contains strings.
    """
    setup_hints.note(setup_hints.MANUAL)
    value = _movable(tensor)
    require(
        value.shape.rank != 0,
        what=f"{name}() received a scalar",
        why="it moves rows of a tensor, and a scalar has no rows",
        hint="Pass tf.reshape(tensor, [1])",
        about="tensor",
        kind="shape",
    )
    add_rows_to_label(value)
    return value


def _equal_rows(value: Any, size: int) -> Any:
    count = tf.shape(value, out_type=tf.int64)[0]
    tf.debugging.assert_equal(
        count % size,
        tf.zeros([], tf.int64),
        f"the number of rows is not a multiple of {size} ranks",
    )
    return tf.fill([size], count // size)


def _counts(splits: Any, value: Any, size: int) -> Any:
    given = tf.convert_to_tensor(splits)
    require(
        given.shape.is_compatible_with([size]),
        what=f"splits of alltoall() has the shape {given.shape}",
        why=f"it needs one number of rows for each rank, and there are {size} ranks",
        hint=f"Pass {size} integers",
        about="splits",
        kind="shape",
    )
    require(
        given.dtype.is_integer,
        what=f"splits of alltoall() has the dtype {given.dtype.name}",
        why="it contains numbers of rows, which are integers",
        hint="Pass an integer for each rank",
        about="splits",
        kind="dtype",
    )
    return _dividing(tf.cast(given, tf.int64), value)


def _dividing(counts: Any, value: Any) -> Any:
    """Return `counts` after two checks, which also run in a graph.

    No count may be negative, and their sum must be the number of rows of `value`.

    Args:
        counts: Number of rows that alltoall() sends to each rank, int64 [size].
        value: Tensor [rows, ...] to send.
    """
    hint = "pass numbers of rows whose sum is the number of rows of the tensor"
    total, count = tf.reduce_sum(counts), tf.shape(value, out_type=tf.int64)[0]
    checks = [
        tf.debugging.assert_non_negative(
            counts, f"splits of alltoall() has a negative number: {hint}"
        ),
        tf.debugging.assert_equal(
            total, count, f"the sum of splits of alltoall() is not the number of rows: {hint}"
        ),
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.identity(counts)
