# SPDX-License-Identifier: Apache-2.0
"""Collectives of some ranks, and reductions that Horovod has beyond sums of floats."""

import numpy as np
import pytest
from tf_ranks import joined


def _sets(rank, size):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as hvd
    from sagemaker_dist.errors import OptionError

    outer = hvd.ProcessSet([2, 0])
    hvd.init(process_sets=[outer])
    alone = hvd.add_process_set([1])
    mine, other = (outer, alone) if rank != 1 else (alone, outer)
    x = tf.constant([[float(rank)]])
    kwargs = {"process_set": mine}
    found = [
        hvd.allreduce(x, op=hvd.Sum, **kwargs),
        hvd.allgather(x, **kwargs),
        hvd.broadcast(x, mine.ranks[-1], **kwargs),
        hvd.alltoall(tf.repeat(x, mine.size(), 0), **kwargs),
        hvd.reducescatter(tf.repeat(x, mine.size(), 0), op=hvd.Sum, **kwargs),
        tf.function(lambda y: hvd.grouped_allreduce([y], **kwargs)[0])(x),
    ]
    with hvd.DistributedGradientTape(tf.GradientTape(), process_set=mine) as tape:
        variable = tf.Variable(1.0)
        loss = variable * (rank + 1.0)
    found.append(tape.gradient(loss, variable))
    objects = hvd.allgather_object(rank, process_set=mine)
    hvd.barrier(process_set=mine)
    numbers = outer.process_set_id, alone.process_set_id, mine.rank(), mine.size()
    included = [int(hvd.process_set_included_op(each)) for each in (outer, alone)]
    errors = []
    for call in (
        lambda: hvd.allreduce(x, process_set=other),
        lambda: hvd.broadcast(x, 3 - rank if rank else 1, process_set=mine),
        lambda: hvd.add_process_set([0, 2]),
        lambda: hvd.add_process_set([size]),
        lambda: hvd.allreduce(x, process_set=hvd.ProcessSet([0])),
        lambda: hvd.allreduce(x, process_set=[0]),
    ):
        with pytest.raises(OptionError) as caught:
            call()
        errors.append(caught.value.about[0])
    removed = hvd.remove_process_set(alone), hvd.remove_process_set(alone)
    again = hvd.add_process_set([1, 2]).process_set_id
    everyone = float(hvd.allreduce(float(rank), op=hvd.Sum))
    hvd.shutdown()
    values = [np.asarray(each).reshape(-1).tolist() for each in found]
    return values, objects, numbers, included, errors, removed, again, everyone


def test_process_sets(tf_world):
    """Sets of init() and later ones; what is wrong is refused on the rank that calls it."""
    outer = [[2.0], [0.0, 2.0], [2.0], [0.0, 2.0], [2.0], [1.0], [2.0]]
    alone = [[1.0], [1.0], [1.0], [1.0], [1.0], [1.0], [2.0]]
    for rank, found in enumerate(tf_world.run(_sets, size=3)):
        values, objects, numbers, included, errors, removed, again, everyone = found
        assert (alone if rank == 1 else outer) == values
        assert ([1] if rank == 1 else [0, 2]) == objects
        assert (1, 2, rank // 2, 1 if rank == 1 else 2) == numbers
        assert ([0, 1] if rank == 1 else [1, 0]) == included
        assert ["process_set", "root_rank", *["process_set"] * 4] == errors
        assert ((True, False), 3, 3.0) == (removed, again, everyone)


def _reductions(rank, size):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as hvd

    with joined():
        whole = tf.constant([3 + rank, -3 - rank])
        slices = tf.IndexedSlices(
            tf.constant([[1.0 + rank], [5.0 - rank]]),
            tf.constant([0, 1 + rank]),
            tf.constant([3, 1]),
        )
        least = hvd.allreduce(slices, op=hvd.Min, postscale_factor=2.0)
        flat = tf.constant([[0.0, 3.0, 0.0], [2.0, 0.0, 0.0]][rank])
        rows = tf.Variable(tf.reshape(tf.range(10.0), [5, 2]))
        with tf.GradientTape() as tape:
            part = hvd.reducescatter(rows, op=hvd.Sum)
            loss = tf.reduce_sum(part) * (rank + 1.0)
        unknown = tf.function(
            lambda y: hvd.reducescatter(y, op=hvd.Sum),
            input_signature=[tf.TensorSpec([None, 2])],
        )
        same = np.array_equal(part, unknown(rows))
        found = [
            hvd.allreduce(whole),
            hvd.allreduce(whole, op=hvd.Sum, prescale_factor=0.5),
            hvd.reducescatter(whole, prescale_factor=3.0),
            least.values,
            least.indices,
            hvd.allreduce(tf.constant([2.0, 4.0]), op=hvd.Adasum),
            hvd.allreduce(flat, op=hvd.Adasum),
            part,
            tape.gradient(loss, rows),
        ]
    return same, [np.asarray(each).reshape(-1).tolist() for each in found]


def test_reductions_of_integers_slices_and_uneven_rows(tf_world):
    """Averages of integers are rounded down, factors towards zero; Adasum of equal vectors is their
    average, of orthogonal ones their sum.
    """
    for rank, (same, found) in enumerate(tf_world.run(_reductions, size=2)):
        part = [[0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [12.0, 14.0, 16.0, 18.0]][rank]
        assert same
        assert [
            [3, -4],
            [1 + 2, -1 - 2],
            [[10], [-11]][rank],
            [2.0, 10.0, 8.0],
            [0, 1, 2],
            [2.0, 4.0],
            [2.0, 3.0, 0.0],
            part,
            [2.0] * 6 + [4.0] * 4,  # as in Horovod, times the number of ranks
        ] == found
