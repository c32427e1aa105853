# SPDX-License-Identifier: Apache-2.0
"""All ranks start operations in one order, wherever TensorFlow runs them; else they are refused."""

import time

import pytest
from tf_ranks import joined

COUNT = 6


def _sum(x):
    import smdist.dataparallel.tensorflow as sdp

    return sdp.allreduce(x, average=False)


def _late_at_first(rank):
    """A number as float32 []; the first one comes late, on rank 0 only."""
    import tensorflow as tf

    def late(number):
        time.sleep(0.1 if rank == 0 and number == 0 else 0)
        return number

    def tensor_of(number):
        number = tf.cast(number, tf.float32)
        found = tf.numpy_function(late, [number], tf.float32, stateful=False)
        found.set_shape([])
        return found

    return tensor_of


def _in_loops(rank, size):
    import tensorflow as tf

    with joined():
        tensor_of = _late_at_first(rank)

        @tf.function
        def counted():
            sums = tf.TensorArray(tf.float32, COUNT)
            for number in tf.range(COUNT):
                sums = sums.write(number, _sum(tensor_of(number)))
            return sums.stack()

        @tf.function
        def mapped():
            return tf.map_fn(
                lambda number: _sum(tensor_of(number)),
                tf.range(COUNT),
                fn_output_signature=tf.float32,
                parallel_iterations=COUNT,
            )

        @tf.function
        def read(data):
            sums = tf.zeros([0])
            for number in data:
                tf.autograph.experimental.set_loop_options(
                    shape_invariants=[(sums, tf.TensorShape([None]))]
                )
                sums = tf.concat([sums, [_sum(tensor_of(number))]], 0)
            return sums

        found = [counted(), mapped(), read(tf.data.Dataset.range(COUNT))]
        return [each.numpy().tolist() for each in found]


def test_loops_keep_the_order_of_the_program(tf_world):
    """Iterations may overlap; each number meets the same of the other rank."""
    doubled = [2.0 * number for number in range(COUNT)]

    assert [[doubled] * 3] * 2 == tf_world.run(_in_loops, size=2)


def _where_order_is_lost(rank, size):
    import tensorflow as tf

    from sagemaker_dist.errors import OptionError

    data = tf.data.Dataset.range(COUNT).map(lambda number: tf.cast(number, tf.float32))
    plain = tf.autograph.experimental.do_not_convert(_sum)
    nested = tf.function(_sum, autograph=False)
    with joined():
        for call in (plain, nested):
            for method in ("map", "filter", "interleave", "flat_map"):
                with pytest.raises(OptionError) as caught:
                    getattr(data, method)(call)
                assert (f"Dataset.{method}",) == caught.value.about
        return float(_sum(tf.constant(1.0)))


def test_where_order_is_lost_operations_are_refused(tf_world):
    """Sums of a dataset's function would be of numbers that do not belong
    together; ranks that were refused go on.
    """
    assert [2.0, 2.0] == tf_world.run(_where_order_is_lost, size=2)
