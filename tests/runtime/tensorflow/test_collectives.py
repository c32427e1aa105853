# SPDX-License-Identifier: Apache-2.0
"""Collectives of the Python API, eagerly and in a tf.function, and their gradients."""

import numpy as np
import pytest
from engine_faults import fault_fields


def _joined():
    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    return sdp


def _values(rank, size, in_function):
    import tensorflow as tf

    sdp = _joined()
    mine = tf.constant([[1.0, 2.0], [3.0, 4.0]]) * (rank + 1)

    def calls(tensor):
        slices = tf.IndexedSlices(tensor, tf.constant([rank, 5]), tf.constant([9, 2]))
        gathered = sdp.allreduce(slices)
        parts, counts = sdp.alltoall(tensor, splits=[rank, 2 - rank])
        return {
            "average": sdp.allreduce(tensor),
            "smddp": sdp.allreduce(tensor, np.int64(0), 1, sdp.Compression.fp16, sdp.Sum),
            "horovod": sdp.allreduce(tensor, average=False, prescale_factor=2.0),
            "max": sdp.oob_allreduce(tensor, op=sdp.Max),
            "integers": sdp.allreduce(tf.cast(tensor, tf.int32), op=sdp.Product),
            "grouped": sdp.grouped_allreduce([tensor, tensor[0]], postscale_factor=0.5)[1],
            "half": sdp.allreduce(tensor, compression=sdp.Compression.fp16),
            "gathered": sdp.allgather(tensor[: rank + 1]),
            "flags": sdp.broadcast(tensor > 2, 1),
            "parts": parts,
            "counts": counts,
            "whole": sdp.alltoall(tensor),
            "share": sdp.reduce_scatter(tensor, op=sdp.Sum),
            "values": gathered.values,
            "indices": gathered.indices,
        }

    found = tf.function(calls)(mine) if in_function else calls(mine)
    sdp.barrier()
    return {name: (value.dtype.name, value.numpy().tolist()) for name, value in found.items()}


@pytest.mark.parametrize("in_function", [False, True])
def test_collectives_do_what_they_say(tf_world, in_function):
    first, second = tf_world.run(_values, in_function, size=2)
    one, two = [[1.0, 2.0], [3.0, 4.0]], [[2.0, 4.0], [6.0, 8.0]]
    total = [[3.0, 6.0], [9.0, 12.0]]

    assert ("float32", [[1.5, 3.0], [4.5, 6.0]]) == first["average"] == second["average"]
    assert ("float32", total) == first["smddp"] == second["smddp"]
    assert ("float32", [[6.0, 12.0], [18.0, 24.0]]) == first["horovod"]
    assert ("float32", two) == first["max"]
    assert ("int32", [[2, 8], [18, 32]]) == first["integers"]
    assert ("float32", [0.75, 1.5]) == first["grouped"]
    assert ("float32", [[1.5, 3.0], [4.5, 6.0]]) == first["half"]
    assert ("float32", [one[0], *two]) == first["gathered"] == second["gathered"]
    assert ("bool", [[False, True], [True, True]]) == first["flags"] == second["flags"]
    assert ("float32", [two[0]]) == first["parts"]
    assert ("float32", [*one, two[1]]) == second["parts"]
    assert ([0, 1], [2, 1]) == (first["counts"][1], second["counts"][1])
    assert ("float32", [one[1], two[1]]) == second["whole"]
    assert (total[:1], total[1:]) == (first["share"][1], second["share"][1])
    assert [[0.5, 1.0], [1.5, 2.0], [1.0, 2.0], [3.0, 4.0]] == first["values"][1]
    assert [0, 5, 1, 5] == first["indices"][1] == second["indices"][1]


def _gradients(rank, size):
    import tensorflow as tf

    sdp = _joined()
    weight = tf.constant([2.0, 3.0])
    found = {}
    calls = {
        "average": sdp.allreduce,
        "sum": lambda value: sdp.allreduce(value, op=sdp.Sum),
        "gather": lambda value: sdp.allgather(value)[::2],
        "broadcast": lambda value: sdp.broadcast(value, 1),
        "exchange": sdp.alltoall,
        "scatter": sdp.reduce_scatter,
        "scatter_sum": lambda value: sdp.reduce_scatter(value, op=sdp.Sum),
    }
    for name, call in calls.items():
        with tf.GradientTape() as tape:
            tape.watch(weight)
            result = tf.reduce_sum(call(weight * weight)) * (rank + 1)
        found[name] = tape.gradient(result, weight).numpy().tolist()
    with tf.GradientTape() as tape:
        tape.watch(weight)
        result = sdp.allreduce(weight, op=sdp.Max)
    from sagemaker_dist.errors import OptionError

    with pytest.raises(OptionError) as caught:
        tape.gradient(result, weight)
    assert (("op",), "no_gradient") == (caught.value.about, caught.value.kind)
    return found


def test_gradients_go_back_to_where_values_came_from(tf_world):
    """Upstream is 1 on rank 0 and 2 on rank 1; the derivative of a weight's square is [4, 6].

    As in Horovod, allgather and broadcast average upstream, and a sum that is scattered is
    multiplied by the number of ranks.
    """
    first, second = tf_world.run(_gradients, size=2)

    assert [6.0, 9.0] == first["average"] == second["average"]
    assert [12.0, 18.0] == first["sum"] == second["sum"]
    assert [6.0, 0.0] == first["gather"] == second["gather"]
    assert ([0.0, 0.0], [6.0, 9.0]) == (first["broadcast"], second["broadcast"])
    assert [4.0, 12.0] == first["exchange"] == second["exchange"]
    assert [4.0, 12.0] == first["scatter"] == second["scatter"]
    assert [8.0, 24.0] == first["scatter_sum"] == second["scatter_sum"]


def _packed(rank, size):
    """Rank 0's function knows no shapes."""
    import tensorflow as tf

    sdp = _joined()
    length = None if rank == 0 else 3
    signature = [tf.TensorSpec([length, 2]), tf.TensorSpec([2])]

    @tf.function(input_signature=signature)
    def reduce(one, other):
        with tf.GradientTape() as tape:
            tape.watch([one, other])
            whole = sdp.grouped_allreduce([one, other], op=sdp.Sum)
            loss = tf.reduce_sum(whole[0] * whole[0]) + tf.reduce_sum(whole[1])
        return whole, tape.gradient(loss, [one, other])

    found = reduce(tf.fill([3, 2], 1.0 + rank), tf.fill([2], 5.0))
    return [float(tf.reduce_sum(each)) for each in tf.nest.flatten(found)]


def test_a_group_does_not_depend_on_the_shapes_a_function_knows(tf_world):
    """Neither there nor back."""
    assert [[18.0, 20.0, 72.0, 4.0]] * 2 == tf_world.run(_packed, size=2)


def _refused(rank, size):
    import tensorflow as tf

    from sagemaker_dist.errors import OptionError

    sdp = _joined()
    calls = {
        ("op", "rounding"): lambda: sdp.allreduce(tf.constant([True])),
        ("tensor", "shape"): lambda: sdp.allgather(1.0),
        ("root_rank", "option"): lambda: sdp.broadcast([1.0], 2),
        ("variables", "option"): lambda: sdp.broadcast_variables([tf.constant(1.0)], 0),
    }
    for (about, kind), call in calls.items():
        with pytest.raises(OptionError) as caught:
            call()
        assert ((about,), kind) == (caught.value.about, caught.value.kind)
    with pytest.raises(tf.errors.InvalidArgumentError, match="multiple of 2"):
        sdp.alltoall(tf.zeros([3]))
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"number 0 .*rank 1 .*rank 0"):
        sdp.broadcast_variables([tf.Variable(tf.zeros([2 + rank, 2]))], 0)
    return sdp.allreduce([1.0]).numpy().tolist()


def test_wrong_calls_are_errors_on_all_ranks_and_the_next_one_works(tf_world):
    assert [[1.0], [1.0]] == tf_world.run(_refused, size=2)


def _other_shapes(rank, size):
    import tensorflow as tf

    sdp = _joined()
    calls = [
        lambda: tf.function(sdp.allreduce)(tf.zeros([2 + rank])),
        lambda: sdp.allreduce(tf.zeros([2, 3] if rank == 0 else [3, 2]), name="x"),
        lambda: (sdp.allgather if rank == 0 else sdp.allreduce)(tf.zeros([2, 5]), name="y"),
    ]
    said = []
    for call in calls:
        with pytest.raises(tf.errors.FailedPreconditionError) as told:
            call()
        said.append(str(told.value))
    return said, fault_fields("kind", "operation")


def test_calls_that_differ_are_told_by_each_rank(tf_world):
    """The result is neither wrong nor a hang: an error has both ranks' calls, and its own whole."""
    own = [
        ["allreduce() of float32 [2]", "allreduce() of float32 [3]"],
        ["allreduce(name='x') of float32 [2, 3]", "allreduce(name='x') of float32 [3, 2]"],
        ["allgather(name='y') of float32 [?, 5]", "allreduce(name='y') of float32 [2, 5]"],
    ]
    for rank, (said, fields) in enumerate(tf_world.run(_other_shapes, size=2)):
        assert ("usage", "all_gather" if rank == 0 else "all_reduce") == fields
        for text, calls in zip(said, own, strict=True):
            assert "rank 1" in text
            assert "rank 0" in text
            assert f". This rank called {calls[rank]}. All ranks must pass" in text
        assert "the layouts (dtypes and shapes) differ" in said[1]


def _other_rows(rank, size, name):
    import tensorflow as tf

    sdp = _joined()
    mine = tf.zeros([2 * (1 + rank), 2, 3] if rank == 0 else [4, 3, 2])
    with pytest.raises(tf.errors.FailedPreconditionError):
        getattr(sdp, name)(mine)
    return fault_fields("kind", "operation")


@pytest.mark.parametrize("name", ["allgather", "alltoall"])
def test_rows_of_another_shape_are_told_where_their_numbers_differ(tf_world, name):
    """Though they are as many bytes; the engine gathers different numbers of rows by all_to_all."""
    assert [("usage", "all_to_all")] * 2 == tf_world.run(_other_rows, name, size=2)


def _variables(rank, size):
    import keras
    import tensorflow as tf

    sdp = _joined()
    mine = [
        tf.Variable(tf.fill([3, 2], float(rank))),
        {"keras": [keras.Variable(np.full(4, rank, "float32")), tf.Variable(rank, dtype=tf.int64)]},
        (tf.Variable([bool(rank)]), tf.Variable(tf.fill([2], tf.cast(rank, tf.bfloat16)))),
    ]
    sdp.broadcast_variables(mine, root_rank=1)
    sdp.broadcast_variables(list, root_rank=0)
    optimizer = keras.optimizers.Adam(0.1 * (rank + 1))
    optimizer.build([mine[0]])
    tf.function(lambda: sdp.broadcast_variables(optimizer.variables, 0))()
    flat = [np.array(each).astype(float).ravel().tolist() for each in tf.nest.flatten(mine)]
    return flat, float(optimizer.learning_rate)


def test_variables_of_all_kinds_become_the_roots(tf_world):
    """Also nested ones, several dtypes in one call, and within a tf.function."""
    first, second = tf_world.run(_variables, size=2)

    assert first == second
    assert [1.0] * 14 == [value for each in first[0] for value in each]
    assert 0.1 == pytest.approx(first[1])


def _one(rank, size):
    import tensorflow as tf

    sdp = _joined()
    value = tf.constant([[1.0, 2.0]])
    parts, counts = sdp.alltoall(value, [1])
    assert [1] == counts.numpy().tolist()
    sdp.barrier()
    sdp.broadcast_variables([tf.Variable(1.0)], 0)
    results = [sdp.allreduce(value), sdp.allgather(value), sdp.broadcast(value, 0), parts]
    results += [sdp.reduce_scatter(value), sdp.alltoall(value)]
    return [result.numpy().tolist() for result in results]


def test_one_rank_needs_no_others(tf_world):
    [found] = tf_world.run(_one, size=1)

    assert [[[1.0, 2.0]]] * 6 == found
