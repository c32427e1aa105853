# SPDX-License-Identifier: Apache-2.0
"""All-reduces of one tf.function overlap, by the clock.

Rank 1 takes part in each all-reduce 50 ms after rank 0 has started it, as if the link were long:
one takes 50 ms at least, and four in turn 200.
"""

import time

from tf_ranks import joined, meeting

LATENCY = 0.05  # seconds
COUNT = 4
ROUNDS = 5


def _function(in_turn, tell):
    """Reduces COUNT tensors of 1000; `tell` is called with its number before each."""
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    def mark(number, x):
        tell(int(number))
        return x

    @tf.function
    def reduce(x, count):
        results = []
        for number in range(count):
            with tf.control_dependencies(results[-1:] if in_turn else []):
                marked = tf.ensure_shape(tf.numpy_function(mark, [number, x], tf.float32), [1000])
            results.append(sdp.allreduce(marked * (number + 1.0), average=False))
        return results

    return reduce


def _follow(label, count):
    """Takes part in each of them as late as that."""
    import tensorflow as tf

    from smdist.dataparallel.tensorflow import op_library

    handles = []
    for number in range(count):
        begun = meeting().hear(f"{label}-{number}")
        time.sleep(max(0, begun + LATENCY - time.monotonic()))
        tensor = tf.fill([1000], number + 1.0)
        handles.append(op_library.start([tensor], "sum"))
    for handle in handles:
        op_library.wait(handle, [tensor])


def _seconds(rank, label, in_turn, count=COUNT):
    """Of each round on rank 0."""
    import tensorflow as tf

    found, names = [], []
    reduce = _function(
        in_turn, lambda number: meeting().tell(f"{names[-1]}-{number}", time.monotonic())
    )
    for turn in range(ROUNDS):
        names.append(f"{label}-{turn}")
        if rank != 0:
            _follow(names[-1], count)
            continue
        begin = time.monotonic()
        results = [float(each[0]) for each in reduce(tf.ones([1000]), count)]
        found.append(time.monotonic() - begin)
        assert [2.0 * (number + 1) for number in range(count)] == results
    return found


def _measured(rank, size):
    with joined():
        return [
            _seconds(rank, "alone", in_turn=False, count=1),
            _seconds(rank, "in-turn", in_turn=True),
            _seconds(rank, "together", in_turn=False),
        ]


def test_four_take_hardly_longer_than_one(tf_world):
    """Together under 90 ms, where each takes 50; the best of five rounds, on a busy machine."""
    (alone, in_turn, together), _ = tf_world.run(_measured, size=2)
    print(f"alone {min(alone):.3f} s, in turn {min(in_turn):.3f} s, together {min(together):.3f} s")

    assert min(alone) >= LATENCY
    assert min(in_turn) >= COUNT * LATENCY
    assert min(together) < 0.09
