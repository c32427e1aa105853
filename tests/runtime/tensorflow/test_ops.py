# SPDX-License-Identifier: Apache-2.0
"""The compiled ops: what they compute, in which order, how they fail, and what they hold."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from engine_faults import fault_fields
from ranks import RankFailedError
from tf_ranks import held_by_others, joined, meeting

DTYPES = (
    "float16 bfloat16 float32 float64 int8 uint8 int16 int32 int64 bool".split()  # noqa: SIM905
)


def _sums(rank, size, dtype):
    import tensorflow as tf

    random = np.random.default_rng(rank)
    values = [random.normal(size=shape) * 5 for shape in [(7, 3), (), (0, 2)]]
    values.append(np.arange(1000) % 4 + rank)  # whose sums every dtype has
    with joined() as (ops, _):
        tensors = [tf.cast(tf.constant(value), dtype) for value in values]
        handle = ops.smdist_start(tensors)
        results = ops.smdist_wait(handle, T=tensors[0].dtype, N=4)
    bits = [result.numpy().tobytes() for result in results]
    shapes = [tuple(result.shape) for result in results]
    return bits, shapes, results[3].numpy().astype(float).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_bitwise_equal_on_all_ranks(tf_world, dtype):
    """Three ranks get the same bits, in the shapes that they gave."""
    sums = [1.0 if dtype == "bool" else 3.0 * (i % 4) + 3 for i in range(1000)]
    (first, shapes, found), (second, *_), (third, *_) = tf_world.run(_sums, dtype)

    assert first == second == third
    assert [(7, 3), (), (0, 2), (1000,)] == shapes
    assert sums == found


def _reductions(rank, size):
    import tensorflow as tf

    mine = tf.constant([1.0, -2.0, 3.0]) * (rank + 1)
    found = {}
    with joined() as (ops, _):
        for op in ["sum", "average", "min", "max", "product"]:
            handle = ops.smdist_start([mine], op=op)
            found[op] = ops.smdist_wait(handle, T=tf.float32, N=1)[0].numpy().tolist()
        handle = ops.smdist_start([mine, mine], scale=0.5)
        found["half"] = ops.smdist_wait(handle, T=tf.float32, N=2)[1].numpy().tolist()
    return found


def test_every_reduction_does_what_it_says(tf_world):
    """Two ranks with 1x and 2x the same numbers; a scale counts before the sum."""
    expected = {
        "sum": [3, -6, 9],
        "average": [1.5, -3, 4.5],
        "min": [1, -4, 3],
        "max": [2, -2, 6],
        "product": [2, 8, 18],
        "half": [1.5, -3, 4.5],
    }

    assert [expected, expected] == tf_world.run(_reductions, size=2)


def _overlapping(rank, size):
    import tensorflow as tf

    from smdist.dataparallel.tensorflow import op_library

    here = meeting()
    with joined() as (_, compiled):

        @tf.function(autograph=False)
        def four(x):
            handles = [op_library.start([x * float(i)], "sum") for i in range(1, 5)]
            return [op_library.wait(handle, [x])[0] for handle in handles]

        value = tf.ones([1000])
        if rank == 0:
            watch = threading.Thread(target=_tell_of_four, args=(here, compiled))
            watch.start()
            results = four(value)
            watch.join()
        else:
            here.hear("four-under-way")  # before this rank takes part in any of them
            results = four(value)
    return [float(result[0]) for result in results]


def _tell_of_four(here, compiled):
    here.until(lambda: compiled.under_way() == 4, "four operations under way")
    here.tell("four-under-way", True)


def test_operations_of_one_function_overlap(tf_world):
    """One rank has all four under way, and runs Python beside, before the other calls any."""
    assert [[2, 4, 6, 8]] * 2 == tf_world.run(_overlapping, size=2)


def _in_order(rank, size):
    import tensorflow as tf

    with joined() as (ops, _):

        def slow(x):
            time.sleep(0.05 if rank == 0 else 0)
            return x

        @tf.function
        def two(x):
            late = tf.numpy_function(slow, [x], tf.float32)
            handles = [ops.smdist_start([late]), ops.smdist_start([tf.ones([3])])]
            return [ops.smdist_wait(handle, T=tf.float32, N=1)[0] for handle in handles]

        for _ in range(10):
            first, second = two(tf.ones([5]))
    return first.numpy().tolist(), second.numpy().tolist()


def test_operations_start_in_program_order(tf_world):
    """The second tensor is ready first on one rank only; both start the first one first."""
    assert [([2.0] * 5, [2.0] * 3)] * 2 == tf_world.run(_in_order, size=2)


def _waiting_for_the_dead(rank, size):
    import tensorflow as tf

    with joined() as (ops, compiled):
        before = held_by_others(compiled)
        handle = ops.smdist_start([tf.ones([4])])
        ops.smdist_wait(handle, T=tf.float32, N=1)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        handle = ops.smdist_start([tf.ones([4]), tf.ones([2])])
        with pytest.raises(tf.errors.AbortedError):
            ops.smdist_wait(handle, T=tf.float32, N=2)
        seconds = time.monotonic() - begin
        assert ("lost", 1, "all_reduce") == fault_fields()
        with pytest.raises(tf.errors.AbortedError, match="rank 1 on "):  # for ever after
            ops.smdist_wait(ops.smdist_start([tf.ones([4])]), T=tf.float32, N=1)
        del handle
        meeting().until(lambda: compiled.live_buffers() <= before, "buffers to be given back")
    return seconds


def test_a_dead_rank_is_named(tf_world):
    """Who waits for it gets AbortedError at once, and the buffers are free again."""
    (told, seconds), (survived, _) = tf_world.outcomes(_waiting_for_the_dead, size=2)

    assert told, seconds
    assert seconds < 10
    assert not survived


def _waiting_when_it_dies(rank, size):
    import tensorflow as tf

    from smdist.dataparallel.tensorflow import op_library

    here = meeting()
    with joined() as (ops, compiled):
        before = held_by_others(compiled)
        if rank == 1:
            ops.smdist_start([tf.ones([1])])
            here.hear("three-under-way")
            os.kill(os.getpid(), signal.SIGKILL)

        @tf.function(autograph=False)
        def four(x):
            handles = [op_library.start([x[:n]], "sum") for n in range(1, 5)]
            return [op_library.wait(handle, [x[:n]])[0] for n, handle in enumerate(handles, 1)]

        watch = threading.Thread(target=_tell_of_three, args=(here, compiled))
        watch.start()
        with pytest.raises(tf.errors.AbortedError):
            four(tf.ones([4]))
        assert ("lost", 1) == fault_fields("kind", "culprit")
        watch.join()
        here.until(lambda: compiled.live_buffers() <= before, "buffers to be given back")
        return compiled.open_handles()


def _tell_of_three(here, compiled):
    here.until(lambda: compiled.under_way() >= 3, "operations under way")
    here.tell("three-under-way", True)


def test_a_function_that_waits_ends_when_a_rank_dies(tf_world):
    """Some operations are over and others on their way: no wait is left behind."""
    (told, handles), _ = tf_world.outcomes(_waiting_when_it_dies, size=2)

    assert told, handles
    assert handles == 0


def _of_other_shape(rank, size, seen_before):
    import tensorflow as tf

    with joined() as (ops, _):

        def reduce(shape):
            handle = ops.smdist_start([tf.ones(shape), tf.ones([1])])
            return ops.smdist_wait(handle, T=tf.float32, N=2)

        if seen_before:
            reduce([2, 3])
            reduce([3, 2])
        with pytest.raises(tf.errors.FailedPreconditionError) as caught:
            reduce([2, 3] if rank == 0 else [3, 2])
        assert ("usage", "all_reduce") == fault_fields("kind", "operation")
    return caught.value.message


@pytest.mark.parametrize("seen_before", [False, True])
def test_shapes_that_differ_are_refused(tf_world, seen_before):
    """As many bytes, but other shapes: the errors of both ranks name both shapes."""
    first, second = tf_world.run(_of_other_shape, seen_before, size=2)

    assert "float32 [2, 3], [1]" in first
    assert "float32 [3, 2], [1]" in second


def _one_less(rank, size):
    """Return the errors of the other ranks after rank 1 has ended, in a function and later."""
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    with joined():
        for _ in range(size):  # connect every rank: each in turn may own a small sum
            sdp.allreduce(tf.ones([4]))
        if rank == 1:
            return None
        said = []
        for call in (tf.function(sdp.allreduce), sdp.allreduce):
            with pytest.raises(tf.errors.AbortedError) as told:
                call(tf.ones([4]))
            assert ("left", 1) == fault_fields("kind", "culprit")
            said.append(told.value.message)
    return said


def test_who_goes_on_alone_hears_of_numbers_of_batches(tf_world):
    """The most common mistake with datasets, reported once on every rank."""
    hint = "perhaps it had fewer batches"
    first, nothing, last = tf_world.run(_one_less, size=3)

    assert nothing is None
    for said in (*first, *last):
        assert 1 == said.count(hint)


def _late(rank, size):
    import tensorflow as tf

    with joined(timeout_seconds=1) as (ops, _):
        if rank == 1:
            meeting().hear("timed-out")
            return
        with pytest.raises(tf.errors.DeadlineExceededError, match="fewer batches"):
            ops.smdist_wait(ops.smdist_start([tf.ones([4])]), T=tf.float32, N=1)
        assert ("timeout", 1, "all_reduce") == fault_fields()
        meeting().tell("timed-out", True)


def test_a_late_rank_is_named(tf_world):
    """After the timeout a waiting rank gets DeadlineExceededError."""
    tf_world.run(_late, size=2)


def _without_engine(rank, size):
    import tensorflow as tf

    from smdist.dataparallel.tensorflow import op_library

    ops = op_library.operations()
    for _ in range(2):  # before there was any, and after
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"init\(\) first"):
            ops.smdist_start([tf.ones([4])])
        with joined():
            pass
    none = tf.zeros([0], tf.int64)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"init\(\) first"):
        ops.smdist_move(1.0, none, none, kind="barrier")


def test_without_an_engine_ops_say_what_to_do(tf_world):
    """FailedPreconditionError names init()."""
    tf_world.run(_without_engine, size=2)


def _wrong_calls(rank, size):
    import tensorflow as tf

    rows, uneven = tf.constant([1, 1], tf.int64), tf.constant([1, 2], tf.int64)
    refused = tf.errors.InvalidArgumentError
    with joined() as (ops, compiled):
        before = held_by_others(compiled)
        with pytest.raises(refused, match=r"average .* int32"):
            ops.smdist_start([tf.constant([1])], op="average")
        with pytest.raises(refused, match="multiple of the number of ranks"):
            ops.smdist_move(tf.ones([3]), rows, uneven, kind="reduce_scatter")
        with pytest.raises(refused, match="has 3 rows"):
            ops.smdist_move(tf.ones([3]), rows, rows, kind="all_gather")
        with pytest.raises(refused, match="sums up to 2"):
            ops.smdist_move(tf.ones([3]), rows, rows, kind="all_to_all")
        with pytest.raises(refused, match="scalar has no rows"):
            ops.smdist_move(1.0, rows, rows, kind="all_gather")
        with pytest.raises(refused, match="no fixed size"):
            ops.smdist_move(tf.constant(["text"]), rows, rows, kind="broadcast")
        handle = ops.smdist_start([tf.ones([4])])
        ops.smdist_wait(handle, T=tf.float32, N=1)
        with pytest.raises(refused, match="each handle once"):
            ops.smdist_wait(handle, T=tf.float32, N=1)
        handle = ops.smdist_start([tf.ones([4])])
        with pytest.raises(refused, match="same T and N"):
            ops.smdist_wait(handle, T=tf.int32, N=1)
        del handle
        meeting().until(lambda: compiled.live_buffers() <= before, "buffers to be given back")


def test_wrong_calls_are_refused_and_harm_nobody(tf_world):
    """Each is InvalidArgumentError with its hint; the engine continues."""
    tf_world.run(_wrong_calls, size=2)


def _forked(rank, size):
    import tensorflow as tf

    with joined() as (ops, _):
        child = os.fork()
        if child == 0:
            _leave_refused(ops, tf)
        _, status = os.waitpid(child, 0)
        handle = ops.smdist_start([tf.ones([4])])
        ops.smdist_wait(handle, T=tf.float32, N=1)
    return os.waitstatus_to_exitcode(status)


def _leave_refused(ops, tf):
    signal.alarm(10)
    try:
        ops.smdist_start([tf.ones([4])])
    except tf.errors.FailedPreconditionError as error:
        os._exit(0 if "forked" in error.message else 2)
    os._exit(1)


def test_a_forked_child_has_no_engine(tf_world):
    """It is refused, and its parent continues."""
    assert [0, 0] == tf_world.run(_forked, size=2)


def test_a_failing_rank_fails_the_test(tf_world):
    """What a rank raises reaches pytest."""
    with pytest.raises(RankFailedError, match="rank 1"):
        tf_world.run(_failing_on_one, size=2)


def _failing_on_one(rank, size):
    assert rank == 0
