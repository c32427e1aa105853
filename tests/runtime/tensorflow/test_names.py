# SPDX-License-Identifier: Apache-2.0
"""Collectives that ranks match by name: of threads, and in the graphs of sessions."""

import contextlib
import io
import threading
import time

import numpy as np
import pytest
from tf_ranks import joined, meeting

COUNT = 6


def _in_threads(rank, size):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    found = {}

    def reduce(number):
        found[number] = float(sdp.allreduce(tf.constant(float(number)), name=f"number {number}"))

    with joined():
        order = range(COUNT) if rank == 0 else reversed(range(COUNT))
        threads = [threading.Thread(target=reduce, args=(number,)) for number in order]
        for thread in threads:
            thread.start()
            time.sleep(0.01)  # so that the first call of each rank is another one
        numbered = [float(sdp.allreduce(tf.constant(1.0), op=sdp.Sum)) for _ in range(3)]
        for thread in threads:
            thread.join()
    return found, numbered


def test_threads_call_in_different_orders(tf_world):
    """Each name meets the same of the other rank; calls without a name go on between them."""
    expected = {number: float(number) for number in range(COUNT)}

    assert [(expected, [2.0] * 3)] * 2 == tf_world.run(_in_threads, size=2)


def _in_a_session(rank, size):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    v1 = tf.compat.v1
    with joined(), tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [2])
        total = sdp.allreduce(x, op=sdp.Sum)
        rows = sdp.allgather(tf.fill([rank + 1, 2], float(rank)))
        sent = sdp.broadcast(tf.constant([rank]), 1)
        part = sdp.reducescatter(tf.range(3.0), op=sdp.Sum)
        parts, splits = sdp.alltoall(tf.range(size), splits=[1] * size)
        slope = tf.gradients(3.0 * total, x)[0]
        done = sdp.barrier()
        fetched = [total, rows, sent, part, parts, splits, slope]
        one_thread = v1.ConfigProto(inter_op_parallelism_threads=1)
        with v1.Session(config=one_thread) as session:
            alone = [session.run(each, {x: [1.0, rank]}) for each in fetched]
            together = session.run(fetched if rank == 0 else fetched[::-1], {x: [1.0, rank]})
            session.run(done)
    together = together if rank == 0 else together[::-1]
    same = [np.array_equal(*both) for both in zip(alone, together, strict=True)]
    return same, [each.tolist() for each in together]


def test_a_session_runs_collectives_in_an_order_of_its_own(tf_world):
    """All at once, with one thread of TensorFlow, as one by one."""
    for rank, (same, found) in enumerate(tf_world.run(_in_a_session, size=2)):
        assert [True] * 7 == same
        assert [
            [2.0, 1.0],
            [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]],
            [1],
            [[0.0, 2.0], [4.0]][rank],
            [rank, rank],
            [1, 1],
            [6.0, 6.0],
        ] == found


def _global_variables(rank, size):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    v1 = tf.compat.v1
    values = []
    with joined():
        for is_monitored in (True, False):
            with tf.Graph().as_default():
                first = v1.get_variable("first", [2], initializer=v1.constant_initializer(rank))
                second = v1.get_variable("second", [], initializer=v1.constant_initializer(-rank))
                if is_monitored:
                    hooks = [sdp.BroadcastGlobalVariablesHook(1)]
                    with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
                        values.append(session.run([first, second]))
                    continue
                sent = sdp.broadcast_global_variables(1)
                with v1.Session() as session:
                    session.run(v1.global_variables_initializer())
                    session.run(sent)
                    values.append(session.run([first, second]))
    return [[each.tolist() for each in pair] for pair in values]


def test_global_variables_of_a_session_are_broadcast(tf_world):
    """By the op, and by the hook of a session that initializes them."""
    assert [[[[1.0, 1.0], -1.0]] * 2] * 2 == tf_world.run(_global_variables, size=2)


def _in_place_in_a_session(rank, size):
    """Variables of both kinds are set by the session, and objects travel without it."""
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    v1 = tf.compat.v1
    with joined(), tf.Graph().as_default() as graph:
        options = {"initializer": v1.constant_initializer(rank), "shape": [2]}
        kinds = {"first": True, "second": False}
        variables = [
            v1.get_variable(name, use_resource=is_resource, **options)
            for name, is_resource in kinds.items()
        ]
        sent = sdp.broadcast_(variables, 1)
        one = sdp.broadcast_(variables[0], 1)
        all_set = sdp.broadcast_variables(variables, 1)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            before = session.run(variables)
            found = session.run(sent), session.run(variables), session.run(one)
            session.run(v1.global_variables_initializer())
            session.run(all_set)
            found = *found, session.run(variables)
            graph.finalize()
            objects = sdp.broadcast_object({"rank": rank}, 1), sdp.allgather_object("x" * rank)
    return [np.array(each).ravel().tolist() for each in (before, *found)], objects


def test_a_session_sets_variables_in_place(tf_world):
    """When it computes what the calls return; objects need no further op of a finalized graph."""
    for rank, (found, objects) in enumerate(tf_world.run(_in_place_in_a_session, size=2)):
        assert [[float(rank)] * 4, [1.0] * 4, [1.0] * 4, [1.0] * 2, [1.0] * 4] == found
        assert ({"rank": 1}, ["", "x"]) == objects


def _only_here(rank, size):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp
    from smdist.dataparallel.tensorflow import setup_hints

    setup_hints._facts.clear()
    setup_hints._printed.clear()
    with contextlib.redirect_stderr(io.StringIO()) as hints, joined(timeout_seconds=2):
        if rank == 1:
            meeting().hear("failed")
            return "waited"
        with pytest.raises(tf.errors.OpError) as caught:
            sdp.allreduce(tf.constant(1.0), name="of rank 0")
        meeting().tell("failed", True)
    return str(caught.value), hints.getvalue()


def test_a_name_of_one_rank_ends_the_job_after_the_timeout(tf_world):
    """After the error there is no hint that rank 0 has called nothing."""
    (said, hints), other = tf_world.run(_only_here, size=2)

    assert "called no collective" not in hints
    assert "'of rank 0/1' was not called on all ranks within 2 s" in said
    assert "waited" == other
