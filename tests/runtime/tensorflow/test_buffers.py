# SPDX-License-Identifier: Apache-2.0
"""Memory of the ops: how long it is kept, and that no other operation writes into it."""

import numpy as np
import pytest
from tf_ranks import held_by_others, joined, meeting

MANY = 1 << 20  # elements: more than leaves at once


def _dropped(rank, size):
    import tensorflow as tf

    here = meeting()
    with joined() as (ops, compiled):
        before = held_by_others(compiled)
        results = ops.smdist_wait(ops.smdist_start([tf.ones([9])] * 3), T=tf.float32, N=3)
        one = results[1]
        del results
        held = compiled.live_buffers() - before  # by one of its three parts
        del one

        @tf.function
        def forgetful(x):
            ops.smdist_start([x])
            return x

        @tf.function
        def failing(x):
            handle = ops.smdist_start([x])
            with tf.control_dependencies([handle, tf.debugging.assert_less(x, 0.0)]):
                return ops.smdist_wait(handle, T=tf.float32, N=1)[0]

        forgetful(tf.ones([5]))
        with pytest.raises(tf.errors.InvalidArgumentError):
            failing(tf.ones([5]))
        here.until(lambda: compiled.live_buffers() <= before, "buffers to be given back")
        return held, compiled.open_handles(), compiled.under_way()


def test_buffers_are_given_back(tf_world):
    """With the last tensor, with a handle that nobody waits for, and after a failed step."""
    assert [(1, 0, 0)] * 2 == tf_world.run(_dropped, size=2)


def _changed_after_the_start(rank, size):
    import tensorflow as tf

    here = meeting()
    with joined() as (ops, _):
        variable = tf.Variable(tf.ones([MANY]))
        if rank == 1:
            here.hear("changed")
        handle = ops.smdist_start([variable])
        variable.assign_add(tf.ones([MANY]))
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=1.0, delta=tf.ones([MANY])
        )
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=1.0, delta=tf.ones([MANY])
        )
        if rank == 0:
            here.tell("changed", True)
        result = ops.smdist_wait(handle, T=tf.float32, N=1)[0].numpy()
    return sorted(set(result.tolist())), float(variable[0])


def test_a_variable_may_change_after_the_start(tf_world):
    """The sum is of what it was, though the tensor is read where it lies."""
    assert [([2.0], 0.0)] * 2 == tf_world.run(_changed_after_the_start, size=2)


def _many_steps(rank, size):
    import tensorflow as tf

    with joined() as (ops, compiled):
        before = held_by_others(compiled)

        @tf.function
        def step(step_number):
            tensors = [tf.fill([i * 37], step_number + i + rank) for i in range(20)]
            handles = [ops.smdist_start(tensors[i::4], op="average") for i in range(4)]
            return [ops.smdist_wait(handle, T=tf.float32, N=5) for handle in handles]

        wrong = 0
        for number in range(100):
            for first, results in enumerate(step(tf.constant(float(number)))):
                for i, result in zip(range(first, 20, 4), results, strict=True):
                    wrong += not np.all(result.numpy() == number + i + (size - 1) / 2)
        del results, result
        meeting().until(lambda: compiled.live_buffers() <= before, "buffers to be given back")
    return wrong


def test_buffers_are_used_again_and_stay_apart(tf_world):
    """A hundred steps of four buffers on three ranks: no number is another's."""
    assert [0, 0, 0] == tf_world.run(_many_steps)
