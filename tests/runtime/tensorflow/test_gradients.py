# SPDX-License-Identifier: Apache-2.0
"""Gradients of all ranks: dense, sparse, absent, of unknown shape."""

import numpy as np
import pytest
from engine_faults import fault_fields


def _joined():
    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    return sdp


def _sparse(rank, size, options, in_function):
    """The gradient of a table of which rank 0 uses rows 0, 1, 1 and rank 1 rows 1, 3."""
    import tensorflow as tf

    sdp = _joined()
    table = tf.Variable(tf.ones([4, 2]))
    scale = tf.Variable(1.0)
    used = tf.constant([0, 1, 1] if rank == 0 else [1, 3])

    def gradient():
        with tf.GradientTape() as tape:
            loss = scale * tf.reduce_sum(tf.gather(table, used)) * (rank + 1)
        tape = sdp.DistributedGradientTape(tape, **options)
        return tape.gradient(loss, {"table": table, "scale": scale})

    found = tf.function(gradient)() if in_function else gradient()
    dense = tf.convert_to_tensor(found["table"]).numpy().tolist()
    return type(found["table"]).__name__, dense, float(found["scale"])


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(
    "options", [{"sparse_as_dense": True}, {}, {"gradient_predivide_factor": 4.0}]
)
def test_sparse_gradients_are_averaged_dense_or_gathered(tf_world, options, in_function):
    first, second = tf_world.run(_sparse, options, in_function, size=2)

    assert first == second
    assert [[0.5, 0.5], [2.0, 2.0], [0.0, 0.0], [1.0, 1.0]] == first[1]
    assert ("IndexedSlices" == first[0]) is not options.get("sparse_as_dense", False)
    assert (3 * 2 + 2 * 2 * 2) / 2 == first[2]


def _trained(rank, size, sparse_as_dense):
    """An embedding after some steps of fit, with rows that only one rank uses."""
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    hvd.init()
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.layers.Input((5,), dtype="int32"), keras.layers.Embedding(12, 3)]
    )
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(1))
    optimizer = keras.optimizers.SGD(0.5, momentum=0.0)
    model.compile(hvd.DistributedOptimizer(optimizer, sparse_as_dense=sparse_as_dense), "mse")
    random = np.random.default_rng(1)
    words, wanted = random.integers(0, 12, (16, 5)), random.normal(size=(16, 1))
    mine = slice(rank * 16 // size, (rank + 1) * 16 // size)
    model.fit(words[mine], wanted[mine], batch_size=16 // size, epochs=4, verbose=0, shuffle=False)
    return [np.array(each) for each in model.trainable_variables]


@pytest.mark.parametrize("sparse_as_dense", [True, False])
def test_embeddings_train_as_on_one_rank(tf_world, sparse_as_dense):
    [alone] = tf_world.run(_trained, False, size=1)
    first, second = tf_world.run(_trained, sparse_as_dense, size=2)

    assert [each.tobytes() for each in first] == [each.tobytes() for each in second]
    for expected, found in zip(alone, first, strict=True):
        assert expected == pytest.approx(found, abs=1e-5)


def _repeated(rank, size, optimizer, settings):
    """A table after steps with rows of both ranks, gathered and dense, and what was gathered."""
    import keras
    import tensorflow as tf

    sdp, tables = _joined(), []
    for sparse_as_dense in (False, True):
        table = keras.Variable(np.ones((4, 1), "float32"))
        ours = sdp.DistributedOptimizer(
            getattr(keras.optimizers, optimizer)(0.1, **settings), sparse_as_dense=sparse_as_dense
        )
        for step in range(2):
            with tf.GradientTape() as tape:
                rows = tf.gather(table.value, [0, 1] if rank == 0 else [1, 3])
                loss = tf.reduce_sum(rows) * (step + 1.0) * (rank + 1.0)
            ours.apply([tape.gradient(loss, table.value)], [table])
        tables.append(np.array(table).ravel().tolist())
    return tables


@pytest.mark.parametrize(
    ("optimizer", "settings"), [("Adam", {}), ("RMSprop", {}), ("SGD", {"clipnorm": 0.5})]
)
def test_a_row_of_two_ranks_counts_once(tf_world, optimizer, settings):
    """Keras's optimizers would take each of the gathered rows for the whole of it."""
    first, second = tf_world.run(_repeated, optimizer, settings, size=2)

    assert first == second
    assert first[0] == pytest.approx(first[1], abs=1e-6)


def _whole_numbers(rank, size):
    import tensorflow as tf

    sdp = _joined()
    slices = tf.IndexedSlices(tf.constant([[3]]), tf.constant([0]), tf.constant([1, 1]))
    return tf.convert_to_tensor(sdp.allreduce(slices, op=sdp.Sum)).numpy().tolist()


def test_slices_of_integers_are_summed(tf_world):
    assert [[[6]], [[6]]] == tf_world.run(_whole_numbers, size=2)


def _grouped(rank, size):
    """Average dense tensors and slices in one call; halves are multiplied by a factor, too."""
    import tensorflow as tf

    sdp = _joined()
    small = tf.IndexedSlices([[3], [4]], [rank, 1], tf.constant([2, 1]))  # lists, as Horovod takes
    large = tf.IndexedSlices(tf.constant([[5.0]]), tf.constant([0]), tf.constant([1, 1]))
    found = sdp.grouped_allreduce([small, tf.constant([1.0, rank]), large])
    halves = sdp.grouped_allreduce([tf.constant([3.0], tf.float16)], prescale_factor=0.7, op="sum")
    kinds = [each.dtype.name for each in (*found, *halves)]
    return [np.array(tf.convert_to_tensor(each)).tolist() for each in (*found, *halves)], kinds


def test_a_group_reduces_slices_and_dense_tensors(tf_world):
    """The average of integer rows is a fraction. 3 * 0.7 is not rounded twice: 2.1, not 2.102."""
    halves = [2 * float(np.float16(2.1))]
    expected = [[[1.5], [5.5]], [1.0, 0.5], [[5.0]], halves]
    kinds = ["float64", "float32", "float32", "float16"]

    assert [(expected, kinds)] * 2 == tf_world.run(_grouped, size=2)


def _absent(rank, size, differs):
    import tensorflow as tf

    sdp = _joined()
    ones, others, third = (tf.Variable([1.0, 2.0]) for _ in range(3))
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum((others if differs and rank else ones) * (rank + 1)) + third[0]
    tape = sdp.DistributedGradientTape(tape)
    if differs:
        with pytest.raises(tf.errors.FailedPreconditionError):
            tape.gradient(loss, [ones, others, third])
        assert ("usage", "all_reduce") == fault_fields("kind", "operation")
        return None
    zero = tf.UnconnectedGradients.ZERO
    found = tape.gradient(loss, [ones, [others]])
    zeros = tape.gradient(loss, (ones, others), unconnected_gradients=zero)
    alone = tape.gradient(loss, others)
    return found[0].numpy().tolist(), found[1], zeros[1].numpy().tolist(), alone


def test_none_stays_none(tf_world):
    """In any structure, from a persistent tape, and zero where the tape is asked for zeros."""
    expected = ([1.5, 1.5], [None], [0.0, 0.0], None)

    assert [expected, expected] == tf_world.run(_absent, False, size=2)


def test_ranks_that_disagree_on_none_are_told(tf_world):
    """Even where shapes are the same."""
    tf_world.run(_absent, True, size=2)


def _unknown(rank, size):
    """A tf.function that knows no shapes, with buffers too small for all."""
    import tensorflow as tf

    from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions
    from smdist.dataparallel.tensorflow.gradients import reduce_gradients

    _joined()

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec([None, 2])])
    def reduce(one, other):
        variable = tf.zeros([3, 2])
        result = reduce_gradients([one, other, one], [None, variable, None], ReduceOptions())
        assert [3, 2] == result[1].shape.as_list()
        return result

    results = reduce(tf.fill([4], float(rank)), tf.fill([3, 2], float(rank)))
    return [float(tf.reduce_sum(result)) for result in results]


def test_unknown_shapes_are_reduced_one_by_one(tf_world):
    assert [[2.0, 3.0, 2.0]] * 2 == tf_world.run(_unknown, size=2)


def _second_order(rank, size):
    import tensorflow as tf

    sdp = _joined()
    weight = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as outer:
        with sdp.DistributedGradientTape(tf.GradientTape()) as inner:
            loss = tf.reduce_sum(weight**3) * (rank + 1)
        first = inner.gradient(loss, weight)
    return outer.gradient(first, weight).numpy().tolist()


def test_a_reduced_gradient_has_a_gradient(tf_world):
    """The derivative of the average of 3 w**2 and 6 w**2 by each rank's own weight."""
    first, second = tf_world.run(_second_order, size=2)

    assert ([6.0, 12.0], [12.0, 24.0]) == (first, second)


def _order(rank, size):
    """What starts in a graph of four layers, in buckets of 1 MiB."""
    import tensorflow as tf

    sdp = _joined()
    weights = [tf.Variable(tf.ones([512, 256 + index])) for index in range(4)]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(weight) for weight in weights)
        tape = sdp.DistributedGradientTape(tape, fusion_bytes=2**20)
        return tape.gradient(loss, weights)

    graph = step.get_concrete_function().graph
    starts = [each for each in graph.get_operations() if each.type == "SmdistStart"]
    waits = [each for each in graph.get_operations() if each.type == "SmdistWait"]
    order = [list(each.inputs[0].shape) for each in starts]
    between = [len(set(each.control_inputs) & set(starts)) for each in starts]
    needs = [{*each.control_inputs, *(value.op for value in each.inputs)} for each in waits]
    return order, between, {starts[-1] in each for each in needs}


def test_buckets_start_in_reverse_order_and_are_waited_for_afterwards(tf_world):
    """TensorFlow itself keeps one start behind the other; no wait stands between them."""
    (order, between, waits), _ = tf_world.run(_order, size=2)

    assert [[512, 259], [512, 258], [512, 257], [512, 256]] == order
    assert [0, 1, 1, 1] == between
    assert {True} == waits
