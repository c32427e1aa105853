# SPDX-License-Identifier: Apache-2.0
"""Collectives that move rows (along axis 0) between ranks, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smdist.dataparallel.tensorflow import basics, op_library, setup_hints
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp, check_gradient


def broadcast(value: Any, root: int) -> Any:
    """Send the tensor of rank `root` to all ranks and return it.

    Its gradient on the root is the sum of all ranks' gradients, and zero on the other ranks.
    """
    setup_hints.note(setup_hints.WEIGHTS)

    def from_root(mine: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            handle = op_library.start([upstream], ReduceOp.SUM.value)
            [total] = op_library.wait(handle, [upstream])
            return total if basics.rank() == root else tf.zeros_like(total)

        handle = op_library.start_move(mine, "broadcast", root=root)
        return op_library.wait_move(handle, mine.dtype, mine.shape), gradient

    return tf.custom_gradient(from_root)(value)


def gather(values: Sequence[Any]) -> list[Any]:
    """Gather each tensor [rows, ...] from all ranks, joined along axis 0 in the order of ranks.

    The number of rows may differ between ranks.

    Returns:
        One tensor [sum of rows over all ranks, ...] for each value.
    """
    counts = _counts([tf.shape(value, out_type=tf.int64)[0] for value in values])
    return [_gathered(value, counts[:, number]) for number, value in enumerate(values)]


def exchange(value: Any, sent: Any) -> tuple[Any, Any]:
    """Send `sent[r]` rows of the tensor to each rank r, and receive rows from all ranks.

    Args:
        value: Tensor [rows, ...].
        sent: Number of rows for each rank, int64 [size].

    Returns:
        (received rows in the order of ranks, number of rows from each rank as int64 [size]).
    """
    ones = [1] * basics.size()
    received = op_library.wait_move(
        op_library.start_move(sent, "all_to_all", sent=ones, received=ones),
        tf.int64,
        [basics.size()],
    )
    return _exchanged(value, sent, received), received


def scatter_reduced(value: Any, op: ReduceOp) -> Any:
    """Reduce a tensor [rows, ...] over all ranks; return this rank's share, [rows / size, ...].

    Raises:
        OptionError: In the backward pass, if `op` is neither a sum nor an average.
    """

    def shared(mine: Any) -> Any:
        size = basics.size()
        share = tf.shape(mine, out_type=tf.int64)[0] // size
        received = tf.fill([size], share)

        def gradient(upstream: Any) -> Any:
            check_gradient(op, "a reduce_scatter")
            whole = _moved_rows(upstream, "all_gather", received=received)
            return whole / tf.cast(size, whole.dtype) if op is ReduceOp.AVERAGE else whole

        return _moved_rows(mine, "reduce_scatter", received=received, op=op.value), gradient

    return tf.custom_gradient(shared)(value)


def barrier() -> Any:
    """Wait until all ranks have called this function.

    Return a tensor that is computed after the wait; its values have no meaning. In a graph,
    TensorFlow may leave the wait out if this tensor is not used.
    """
    nothing = tf.zeros([1], tf.float32)
    handle = op_library.start_move(nothing, "barrier")
    return op_library.wait_move(handle, nothing.dtype, tf.TensorShape(None))


def _counts(rows: list[Any]) -> Any:
    """Gather from all ranks the number of rows of each tensor; return int64 [size, tensors].

    `rows` has these numbers for the tensors of this rank.
    """
    size = basics.size()
    handle = op_library.start_move(tf.stack(rows)[None, :], "all_gather", received=[1] * size)
    return op_library.wait_move(handle, tf.int64, [size, len(rows)])


def _gathered(value: Any, counts: Any) -> Any:
    def from_all(mine: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            [total] = op_library.wait(op_library.start([upstream], ReduceOp.SUM.value), [upstream])
            first = tf.reduce_sum(counts[: basics.rank()])
            return total[first : first + counts[basics.rank()]]

        return _moved_rows(mine, "all_gather", received=counts), gradient

    return tf.custom_gradient(from_all)(value)


def _exchanged(value: Any, sent: Any, received: Any) -> Any:
    def from_each(mine: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return _exchanged(upstream, received, sent)

        return _moved_rows(mine, "all_to_all", sent=sent, received=received), gradient

    return tf.custom_gradient(from_each)(value)


def _moved_rows(value: Any, kind: str, **rows: Any) -> Any:
    shape = tf.TensorShape([None]).concatenate(value.shape[1:])
    return op_library.wait_move(op_library.start_move(value, kind, **rows), value.dtype, shape)
