# SPDX-License-Identifier: Apache-2.0
"""The op that moves rows between ranks: what arrives where."""

import pytest
from tf_ranks import joined

ROWS = ([1, 2], [0, 3])  # what the two ranks of all_to_all send to each


def _moves(rank, size, dtype):
    import tensorflow as tf

    mine = tf.cast(tf.reshape(tf.range(6), [3, 2]) + 10 * rank, dtype)
    none = tf.zeros([0], tf.int64)
    found = {}
    with joined() as (ops, _):

        def move(kind, value, sent=none, received=none, root=0):
            handle = ops.smdist_move(value, sent, received, kind=kind, root=root)
            found[kind] = ops.smdist_moved(handle, T=dtype).numpy().real.astype(int).tolist()

        move("broadcast", mine, root=1)
        move("all_gather", mine[: rank + 1], received=tf.constant([1, 2], tf.int64))
        sent = tf.constant(ROWS[rank], tf.int64)
        received = tf.constant([row[rank] for row in ROWS], tf.int64)
        move("all_to_all", mine, sent, received)
        move("barrier", mine)
        even = ops.smdist_move(mine, none, tf.constant([3, 3], tf.int64), kind="all_gather")
        found["even"] = ops.smdist_moved(even, T=dtype).shape.as_list()
    return found


@pytest.mark.parametrize("dtype", ["float32", "int16", "complex64"])
def test_moves_bring_rows_where_they_belong(tf_world, dtype):
    """Ranks have 0 to 5 and 10 to 15, two in a row, and may give different numbers of rows."""
    first, second = tf_world.run(_moves, dtype, size=2)

    assert [[10, 11], [12, 13], [14, 15]] == first["broadcast"] == second["broadcast"]
    assert [[0, 1], [10, 11], [12, 13]] == first["all_gather"] == second["all_gather"]
    assert [[0, 1]] == first["all_to_all"]
    assert [[2, 3], [4, 5], [10, 11], [12, 13], [14, 15]] == second["all_to_all"]
    assert [] == first["barrier"]
    assert [6, 2] == first["even"]


def _scattered(rank, size):
    import tensorflow as tf

    mine = tf.reshape(tf.range(4.0), [2, 2]) + 10.0 * rank
    rows, none = tf.constant([1, 1], tf.int64), tf.zeros([0], tf.int64)
    with joined() as (ops, compiled):
        handle = ops.smdist_move(mine, none, rows, kind="reduce_scatter", op="average")
        result = ops.smdist_moved(handle, T=tf.float32).numpy().tolist()
        return result, compiled.activity("reduce_scatter")[0] > 0


def test_reduce_scatter_gives_each_rank_its_rows(tf_world):
    """Averages of 0 to 3 and 10 to 13; the activity of the process counts it."""
    assert [([[5, 6]], True), ([[7, 8]], True)] == tf_world.run(_scattered, size=2)
