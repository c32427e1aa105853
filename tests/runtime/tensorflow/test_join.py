# SPDX-License-Identifier: Apache-2.0
"""Ranks without more data join, and the others go on; timelines of their operations."""

import json

import pytest
from error_fields import fields_raised
from tf_ranks import joined


def _uneven(rank, size):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as hvd

    with joined():
        variable = tf.Variable([1.0, 2.0])

        @tf.function
        def step(factor):
            with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
                loss = tf.reduce_sum(variable) * factor
            return tape.gradient(loss, variable)

        found = []
        for batch in range(1 + 2 * rank):  # 1, 3 and 5 batches
            gradient = step(float(rank + 1))
            named = hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name=f"loss of {batch}")
            mean = hvd.allreduce(tf.fill([300_000], float(rank + 1)))  # in shards
            found.append((float(gradient[0]), float(named), float(mean[-1])))
        last = hvd.join()
        after = [float(hvd.allreduce(1.0, op=hvd.Sum)), hvd.allgather(tf.ones([1])).shape[0]]
        named = float(hvd.allreduce(2.0, op=hvd.Sum, name="after"))
        if rank == 0:
            hvd.allreduce(tf.ones([2]))
        again = hvd.join()
        return found, last, [*after, named], again


def test_ranks_join(tf_world):
    """Zeros take the place of a rank that has joined, by number and by name, in every size."""
    sums = [(6, 3, 2), (5, 2, 5 / 3), (5, 2, 5 / 3), (3, 1, 1), (3, 1, 1)]
    for rank, (found, last, after, again) in enumerate(tf_world.run(_uneven, size=3)):
        assert [pytest.approx(each) for each in sums[: 1 + 2 * rank]] == found
        assert 2 == last
        assert [3.0, 3, 6.0] == after
        assert 0 == again


def _others(rank, size):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as hvd
    from smdist.dataparallel.join_ranks import joined_rank
    from smdist.dataparallel.rendezvous.engine_shutdown import last_fault

    with joined():
        calls = [
            lambda: hvd.allgather(tf.ones([2])),
            lambda: hvd.broadcast(tf.ones([2]), 1),
            lambda: hvd.allreduce(tf.ones([2]), op=hvd.Max),
            lambda: hvd.alltoall(tf.ones([size])),
            lambda: hvd.barrier(),
            lambda: hvd.allgather(tf.ones([1]), name="rows"),
        ]
        said = []
        for call in calls if rank > 0 else ():
            with pytest.raises(tf.errors.FailedPreconditionError):
                call()
            said.append(joined_rank(last_fault()))
            said.append(float(hvd.allreduce(1.0, op=hvd.Sum)))
        hvd.join()
        return said, float(hvd.allreduce(1.0, op=hvd.Sum))


def test_other_collectives_fail_while_a_rank_has_joined(tf_world):
    """Each fails on all ranks that have called it, and the next all-reduce works."""
    for rank, (said, after) in enumerate(tf_world.run(_others, size=3)):
        assert [0, 2.0] * (6 if rank else 0) == said
        assert 3.0 == after


def _in_a_graph(rank, size):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as hvd

    with joined():
        return fields_raised(tf.function(hvd.join, autograph=False))


def test_join_is_refused_in_a_graph(tf_world):
    assert [[("join", "graph")]] * 2 == tf_world.run(_in_a_graph, size=2)


def _records(rank, size, folder):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as hvd

    path = f"{folder}/timeline.json"
    with joined():
        hvd.allreduce(tf.ones([7]))
        hvd.start_timeline(path)
        refused = fields_raised(lambda: hvd.start_timeline(path, mark_cycles=True))
        for _ in range(1200):  # more than the engine stores
            hvd.allreduce(tf.ones([8]))
        hvd.broadcast(tf.ones([3]), 0)
        hvd.stop_timeline()
        refused += fields_raised(hvd.stop_timeline)
        if rank == 0:
            refused += fields_raised(lambda: hvd.start_timeline(f"{folder}/none/x.json"))
        return [about for about, _ in refused]


def test_a_timeline_has_the_operations_between_start_and_stop(tf_world, tmp_path):
    """Events of Chrome's trace format: each operation's wait for ranks, and its transfer."""
    answers = tf_world.run(_records, str(tmp_path), size=2)
    events = json.loads((tmp_path / "timeline.json").read_text())
    begun = [each for each in events if each["ph"] == "b"]
    ended = [each for each in events if each["ph"] == "e"]
    lost = sum(each["args"]["operations"] for each in events if each["ph"] == "i")

    names = [each["name"].split(".noname.")[0] for each in begun]

    assert 1201 == sum(name in ("allreduce", "broadcast") for name in names) + lost
    assert {"allreduce", "broadcast", "WAIT_FOR_RANKS", "TRANSFER"} == set(names)
    assert {"pid", "tid", "ph", "name", "cat", "id", "ts"} <= set(begun[0])
    for first, second in zip(begun, ended, strict=True):
        assert (first["id"], first["name"]) == (second["id"], second["name"])
        assert first["ts"] <= second["ts"]
    assert ["mark_cycles", "start_timeline", "stop_timeline", "file_path"] == answers[0]
    assert ["mark_cycles", "start_timeline", "stop_timeline"] == answers[1]
    assert 32 == begun[0]["args"]["bytes"]
