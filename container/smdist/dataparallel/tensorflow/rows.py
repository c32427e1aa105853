# SPDX-License-Identifier: Apache-2.0
"""Collectives that move rows (along axis 0) from rank to rank, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smdist.dataparallel.tensorflow import library, omissions, world
from smdist.dataparallel.tensorflow.library import tf
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp, check_gradient


def broadcast(value: Any, root: int) -> Any:
    """The root's tensor; backward, the root gets the sum of all ranks' gradients."""
    omissions.note(omissions.WEIGHTS)

    def from_root(mine: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            handle = library.start([upstream], ReduceOp.SUM.value)
            [total] = library.wait(handle, [upstream])
            return total if world.rank() == root else tf.zeros_like(total)

        handle = library.move(mine, "broadcast", root=root)
        return library.moved(handle, mine.dtype, mine.shape), gradient

    return tf.custom_gradient(from_root)(value)


def gather(values: Sequence[Any]) -> list[Any]:
    """Each tensor's rows from all ranks, in the order of ranks, which may bring different numbers.

    Returns:
        Tensors [sum of rows, ...].
    """
    counts = _counts([tf.shape(value, out_type=tf.int64)[0] for value in values])
    return [_gathered(value, counts[:, number]) for number, value in enumerate(values)]


def exchange(value: Any, sent: Any) -> tuple[Any, Any]:
    """Send rank r its `sent[r]` rows.

    Args:
        sent: Rows for each rank, int64 [size].

    Returns:
        What came, in the order of ranks, and the rows from each, int64 [size].
    """
    ones = [1] * world.size()
    received = library.moved(
        library.move(sent, "all_to_all", sent=ones, received=ones), tf.int64, [world.size()]
    )
    return _exchanged(value, sent, received), received


def scatter_reduced(value: Any, op: ReduceOp) -> Any:
    """This rank's share of the reduced rows; every share is the same number of rows.

    Raises:
        OptionError: On the way back, if `op` is neither a sum nor an average.
    """

    def shared(mine: Any) -> Any:
        size = world.size()
        share = tf.shape(mine, out_type=tf.int64)[0] // size
        received = tf.fill([size], share)

        def gradient(upstream: Any) -> Any:
            check_gradient(op, "a reduce_scatter")
            whole = _moved_rows(upstream, "all_gather", received=received)
            return whole / tf.cast(size, whole.dtype) if op is ReduceOp.AVERAGE else whole

        return _moved_rows(mine, "reduce_scatter", received=received, op=op.value), gradient

    return tf.custom_gradient(shared)(value)


def barrier() -> Any:
    """Wait until every rank is here; returns a tensor that is there afterwards."""
    nothing = tf.zeros([1], tf.float32)
    handle = library.move(nothing, "barrier")
    return library.moved(handle, nothing.dtype, tf.TensorShape(None))


def _counts(rows: list[Any]) -> Any:
    """Rows of each tensor on each rank, int64 [size, tensors]."""
    size = world.size()
    handle = library.move(tf.stack(rows)[None, :], "all_gather", received=[1] * size)
    return library.moved(handle, tf.int64, [size, len(rows)])


def _gathered(value: Any, counts: Any) -> Any:
    def from_all(mine: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            [total] = library.wait(library.start([upstream], ReduceOp.SUM.value), [upstream])
            first = tf.reduce_sum(counts[: world.rank()])
            return total[first : first + counts[world.rank()]]

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
    return library.moved(library.move(value, kind, **rows), value.dtype, shape)
