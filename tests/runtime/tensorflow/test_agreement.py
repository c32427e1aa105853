# SPDX-License-Identifier: Apache-2.0
"""Another order of variables on a rank is an error; other counts of layers are not."""

import numpy as np
import pytest
from engine_faults import fault_fields

_PATHS = [
    "sequential_1/dense_7/kernel",
    "sequential_1/dense_7/bias",
    "sequential_1/dense_8/kernel",
    "sequential_1/dense_8/bias",
]


class _Variable:
    def __init__(self, path):
        self.path = path


def _names(paths, **options):
    from smdist.dataparallel.tensorflow.variable_signature import names_of

    return names_of([_Variable(path) for path in paths], **options)


@pytest.mark.parametrize(
    "others",
    [
        ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"],
        ["a/dense/kernel", "a/dense/bias", "b/dense/kernel", "b/dense/bias"],
        ["dense/kernel", "dense/bias", "dense/kernel", "dense/bias"],
    ],
)
def test_counts_of_layers_and_outer_names_say_nothing(others):
    assert ["dense 0 kernel", "dense 0 bias", "dense 1 kernel", "dense 1 bias"] == _names(_PATHS)
    assert _names(_PATHS) == _names(others)


@pytest.mark.parametrize("order", [[1, 0, 2, 3], [0, 2, 3, 1], [3, 2, 1, 0]])
def test_another_order_has_other_names(order):
    assert _names(_PATHS) != _names([_PATHS[number] for number in order])


def test_what_an_optimizer_keeps_goes_by_its_last_word():
    """Its names contain paths, which are shorter in a loaded model."""
    built = ["adam/iteration", "adam/sequential_dense_2_kernel_momentum"]
    loaded = ["adam_1/iteration", "adam_1/dense_kernel_momentum"]

    assert _names(built, is_brief=True) == _names(loaded, is_brief=True)
    assert _names(built) != _names(loaded)


def test_what_has_no_name_counts_as_nothing():
    import tensorflow as tf

    from smdist.dataparallel.tensorflow.variable_signature import names_of

    nameless = [None, tf.constant(1.0), tf.Variable(1.0), _Variable("variable_12")]
    assert ["", "", "", "", " 0 w"] == names_of([*nameless, tf.Variable(1.0, name="w")])


def _crosswise(rank, size, call):
    """Two variables of one shape, the other way round on rank 1."""
    import keras
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    def apply(variables, **settings):
        optimizer = sdp.DistributedOptimizer(keras.optimizers.SGD(1.0, **settings))
        for _ in range(2):
            optimizer.apply([tf.ones(2), 3 * tf.ones(2)], variables)

    def differentiate(variables):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variables[0].value - variables[1].value)
        sdp.DistributedGradientTape(tape).gradient(loss, [each.value for each in variables])

    calls = {
        "apply": apply,
        "accumulate": lambda variables: apply(variables, gradient_accumulation_steps=2),
        "tape": differentiate,
        "broadcast": sdp.broadcast_variables,
    }
    sdp.init()
    mine = [keras.Variable([float(rank), 0.0], name=name) for name in "ab"]
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        calls[call](mine[:: 1 - 2 * rank])
    assert "[0, " not in caught.value.message  # the checksum's shape
    if call == "broadcast":  # without a fault of the engine
        assert "at the same position rank 1 has" in caught.value.message
    else:
        assert ("usage", "all_reduce") == fault_fields("kind", "operation")
        assert "variables of the same names" in caught.value.message
    return [float(each[0]) for each in mine]


@pytest.mark.parametrize("call", ["apply", "accumulate", "tape", "broadcast"])
def test_variables_in_another_order_are_told(tf_world, call):
    """Their shapes are the same, so they would be averaged crosswise."""
    assert [[0.0, 0.0], [1.0, 1.0]] == tf_world.run(_crosswise, call, size=2)


def _absent(rank, size, is_scaled):
    """Of two variables each rank has a gradient for another one."""
    import keras
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    plain = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    plain = keras.optimizers.LossScaleOptimizer(plain) if is_scaled else plain
    optimizer = sdp.DistributedOptimizer(plain)
    mine = [keras.Variable([0.0, 0.0]) for _ in range(2)]
    gradients = [tf.ones(2), None][:: 1 - 2 * rank]
    optimizer.apply(gradients, mine)
    with pytest.raises(tf.errors.FailedPreconditionError):
        optimizer.apply(gradients, mine)
    assert ("usage", "all_reduce") == fault_fields("kind", "operation")
    return [np.array(each).tolist() for each in mine]


@pytest.mark.parametrize("is_scaled", [False, True])
def test_accumulated_gradients_of_other_variables_are_told(tf_world, is_scaled):
    """Keras leaves variables without a gradient out before it adds anything up."""
    assert [[[0.0, 0.0]] * 2] * 2 == tf_world.run(_absent, is_scaled, size=2)


def _model(keras):
    layers = [keras.layers.Dense(3), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
    return keras.Sequential([*layers, keras.layers.Dense(1)])


def _apart(rank, size, folder):
    """Rank 0 has built another model before, and loads the one that rank 1 builds."""
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    hvd.init()
    images, labels = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    model = _model(keras)
    if rank == 0:
        model.compile(keras.optimizers.Adam(0.1), "mse")
        model.fit(images, labels, verbose=0)
        model.save(f"{folder}/model.keras")
        model = hvd.load_model(f"{folder}/model.keras")
    else:
        model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
        model.build((None, 3))
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(images, labels, verbose=0, batch_size=4, callbacks=[start])
    paths = [each.path for each in [*model.variables, *model.optimizer.variables]]
    return [np.array(each).tobytes() for each in model.weights], paths


def test_a_rank_that_loaded_its_model_trains_with_one_that_built_it(tf_world, tmp_path):
    """Their variables are the same and named otherwise."""
    (first, paths), (second, other_paths) = tf_world.run(_apart, str(tmp_path), size=2)

    assert first == second
    assert paths != other_paths


def _disagree(rank, size):
    """Another length on rank 1, eagerly and in a graph; the next call has the right sum."""
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    graph = tf.function(lambda tensor: sdp.allreduce(tensor, op=sdp.Sum))
    sums = []
    for run in (lambda tensor: sdp.allreduce(tensor, op=sdp.Sum), graph):
        with pytest.raises(tf.errors.FailedPreconditionError):
            run(tf.ones(1000 + rank))
        assert ("usage", "all_reduce") == fault_fields("kind", "operation")
        sums.append(np.unique(run(tf.ones(1000))).tolist())
    return sums


def _disagree_about_the_root(rank, size, count):
    """The last rank broadcasts from rank 1, the others from rank 0."""
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    for _ in range(3):
        with pytest.raises(tf.errors.FailedPreconditionError):
            sdp.broadcast(tf.fill([count], float(rank)), root_rank=int(rank == size - 1))
        assert ("usage", "broadcast") == fault_fields("kind", "operation")
    return np.unique(sdp.broadcast(tf.fill([count], float(rank)), root_rank=1)).tolist()


def test_every_rank_raises_where_roots_differ(tf_world):
    """Also those that agree with the root, whether they have received its data or not."""
    assert [[1.0]] * 3 == tf_world.run(_disagree_about_the_root, 4, size=3)
    assert [[1.0]] * 3 == tf_world.run(_disagree_about_the_root, 100_000, size=3)


def test_the_next_call_works_after_ranks_disagreed(tf_world):
    assert [[[2.0], [2.0]]] * 2 == tf_world.run(_disagree, size=2)
