# SPDX-License-Identifier: Apache-2.0
"""Collectives that move rows (along axis 0) between ranks, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smdist.dataparallel.tensorflow import op_library, setup_hints
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.operation_names import label, next_key
from smdist.dataparallel.tensorflow.reduce_op import (
    ReduceOp,
    check_gradient,
    engine_op,
    finished,
)
from smdist.dataparallel.tensorflow.set_members import Members


def broadcast(value: Any, root: int, members: Members) -> Any:
    """Send the tensor of rank `root` of the job to all members and return it.

    Its gradient on the root is the average of all members' gradients, and zero on the others, as
    in Horovod.
    """
    setup_hints.note(setup_hints.WEIGHTS)
    place = members.place_of(root)

    def from_root(mine: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            mean = _reduced(upstream, ReduceOp.AVERAGE, members)
            if members.rank == place:
                return mean
            # in the graph of a session this rank would otherwise leave out its part of the average
            with tf.control_dependencies([mean]):
                return tf.zeros_like(mean)

        return _moved(mine, "broadcast", mine.shape, members, root=place), gradient

    return tf.custom_gradient(from_root)(value)


def gather(
    values: Sequence[Any], members: Members, gradient_op: ReduceOp = ReduceOp.AVERAGE
) -> list[Any]:
    """Gather each tensor [rows, ...] from all members, joined along axis 0 in the order of ranks.

    The number of rows may differ between ranks. The gradient of a value is this rank's part of all
    members' gradients.

    Args:
        values: Tensors [rows, ...].
        members: Ranks that take part.
        gradient_op: Operation that reduces the members' gradients: AVERAGE as in Horovod, or SUM
            for the derivative of the sum of the members' losses.

    Returns:
        One tensor [sum of rows over all members, ...] for each value.
    """
    rows = [tf.shape(value, out_type=tf.int64)[0] for value in values]
    counts = _moved(
        tf.stack(rows)[None, :],
        "all_gather",
        [members.size, len(rows)],
        members,
        received=[1] * members.size,
    )
    return [
        _gathered(value, counts[:, number], members, gradient_op)
        for number, value in enumerate(values)
    ]


def gather_equal(vector: Any, members: Members) -> Any:
    """Return the vectors [elements] of all members, which have equal lengths, as [size, elements].

    It has no gradient.
    """
    shape = [members.size, *vector.shape]
    return _moved(vector[None, :], "all_gather", shape, members, received=[1] * members.size)


def exchange(value: Any, sent: Any, members: Members) -> tuple[Any, Any]:
    """Send `sent[r]` rows of the tensor to each member r, and receive rows from all members.

    Args:
        value: Tensor [rows, ...].
        sent: Number of rows for each member, int64 [size].
        members: Ranks that take part.

    Returns:
        (received rows in the order of ranks, number of rows from each member as int64 [size]).
    """
    ones = [1] * members.size
    received = _moved(sent, "all_to_all", [members.size], members, sent=ones, received=ones)
    return _exchanged(value, sent, received, members), received


def scatter_reduced(value: Any, op: ReduceOp, members: Members) -> Any:
    """Reduce a tensor [rows, ...] over all members; return this rank's share of the rows.

    If the number of members does not divide the number of rows, the first members get one row more.
    The gradient of an average is the gathered gradient, and that of a sum is `size` times as much,
    as in Horovod.

    Raises:
        OptionError: In the backward pass, if `op` is neither a sum nor an average.
    """
    size = members.size

    def shared(mine: Any) -> Any:
        count = tf.shape(mine, out_type=tf.int64)[0]
        shares = count // size + tf.cast(tf.range(size, dtype=tf.int64) < count % size, tf.int64)

        def gradient(upstream: Any) -> Any:
            check_gradient(op, "a reduce_scatter")
            whole = _moved_rows(upstream, "all_gather", members, received=shares)
            return whole * tf.cast(size, whole.dtype) if op is ReduceOp.SUM else whole

        most = shares[0]
        is_even = mine.shape.rank is not None and (mine.shape[0] or 1) % size == 0
        padded = mine if is_even else _padded(mine, shares)
        part = _moved_rows(
            padded,
            "reduce_scatter",
            members,
            received=tf.fill([size], most),
            op=engine_op(op, mine.dtype),
        )
        reduced = finished(part, op, size)
        return reduced if is_even else reduced[: shares[members.rank]], gradient

    return tf.custom_gradient(shared)(value)


def barrier(members: Members) -> Any:
    """Wait until all members have called this function.

    Return a tensor that is computed after the wait; its values have no meaning. In a graph,
    TensorFlow may leave the wait out if this tensor is not used.
    """
    return _moved(tf.zeros([1], tf.float32), "barrier", tf.TensorShape(None), members)


def _padded(value: Any, shares: Any) -> Any:
    """Return the rows with a row of zeros after each share that is shorter than the first."""
    with_zeros = tf.concat([value, tf.zeros_like(value[:1])], axis=0)
    first = tf.cumsum(shares, exclusive=True)
    places = tf.range(shares[0])[None, :]
    indices = tf.where(
        places < shares[:, None], first[:, None] + places, tf.shape(value, out_type=tf.int64)[0]
    )
    return tf.gather(with_zeros, tf.reshape(indices, [-1]))


def _reduced(value: Any, op: ReduceOp, members: Members) -> Any:
    key = next_key()
    handle = op_library.start([value], op.value, members.group, key, label())
    return op_library.wait(handle, [value], key)[0]


def _gathered(value: Any, counts: Any, members: Members, gradient_op: ReduceOp) -> Any:
    def from_all(mine: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            whole = _reduced(upstream, gradient_op, members)
            first = tf.reduce_sum(counts[: members.rank])
            return whole[first : first + counts[members.rank]]

        return _moved_rows(mine, "all_gather", members, received=counts), gradient

    return tf.custom_gradient(from_all)(value)


def _exchanged(value: Any, sent: Any, received: Any, members: Members) -> Any:
    def from_each(mine: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return _exchanged(upstream, received, sent, members)

        rows = {"sent": sent, "received": received}
        return _moved_rows(mine, "all_to_all", members, **rows), gradient

    return tf.custom_gradient(from_each)(value)


def _moved_rows(value: Any, kind: str, members: Members, **rows: Any) -> Any:
    shape = tf.TensorShape([None]).concatenate(value.shape[1:])
    return _moved(value, kind, shape, members, **rows)


def _moved(value: Any, kind: str, shape: Any, members: Members, **rows: Any) -> Any:
    key = next_key()
    handle = op_library.start_move(value, kind, group=members.group, key=key, label=label(), **rows)
    return op_library.wait_move(handle, value.dtype, shape, key)
