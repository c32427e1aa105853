# SPDX-License-Identifier: Apache-2.0
"""Training on several ranks is training on one with all of the data."""

import subprocess
import sys

import numpy as np
import pytest

BATCH, STEPS = 32, 6  # in all ranks


def _data():
    random = np.random.default_rng(0)
    images = random.normal(size=(BATCH * STEPS, 20)).astype("float32")
    return images, random.integers(0, 5, BATCH * STEPS)


def _mine(rank, size, array):
    """Of every batch the part of this rank."""
    share = BATCH // size
    return np.concatenate(
        [
            array[first + rank * share : first + (rank + 1) * share]
            for first in range(0, len(array), BATCH)
        ]
    )


def _model(rank):
    import keras

    keras.utils.set_random_seed(rank)  # ranks begin with different weights
    return keras.Sequential(
        [
            keras.layers.Input((20,)),
            keras.layers.Dense(16, "relu"),
            keras.layers.BatchNormalization(trainable=False),
            keras.layers.Dense(5),
        ]
    )


def _loss():
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _weights(model):
    return [np.array(variable) for variable in model.trainable_variables]


def _fit(rank, size, options, settings, compiling=None):
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    hvd.init()
    model = _model(rank)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9, **settings), **options
    )
    model.compile(optimizer, _loss(), **(compiling or {}))
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    data = [_mine(rank, size, array) for array in _data()]
    model.fit(
        *data, batch_size=BATCH // size, shuffle=False, verbose=0, callbacks=[start], epochs=2
    )
    return _weights(model)


def _loop(rank, size, options, settings):
    import keras
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    model, loss_of = _model(rank), _loss()
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, **settings)
    optimizer.build(model.trainable_variables)
    sdp.broadcast_variables([model.variables, optimizer.variables], root_rank=0)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = sdp.DistributedGradientTape(tape, **options)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return sdp.oob_allreduce(loss)

    images, labels = (_mine(rank, size, array) for array in _data())
    share = BATCH // size
    for first in [*range(0, len(images), share)] * 2:
        step(images[first : first + share], labels[first : first + share])
    return _weights(model)


def _far(ones, others):
    return max(float(np.abs(one - other).max()) for one, other in zip(ones, others, strict=True))


@pytest.fixture(scope="module")
def alone(tf_world):
    """What one process gets from whole batches."""
    [weights] = tf_world.run(_loop, {}, {}, size=1)
    return weights


@pytest.mark.parametrize("train", [_fit, _loop])
@pytest.mark.parametrize("options", [{}, {"fusion_bytes": 2**20, "gradient_predivide_factor": 2.0}])
def test_two_ranks_train_as_one(tf_world, alone, train, options):
    """Weights are bitwise equal on both, and within 1e-5 of one process with the whole batch."""
    first, second = tf_world.run(train, options, {}, size=2)

    assert [each.tobytes() for each in first] == [each.tobytes() for each in second]
    assert 1e-5 > _far(first, alone)


@pytest.mark.parametrize("compiling", [{"steps_per_execution": 3}, {"run_eagerly": True}])
def test_several_steps_at_once_and_eager_ones_train_as_well(tf_world, alone, compiling):
    """Collectives in a loop of TensorFlow's own, and outside of any graph."""
    first, second = tf_world.run(_fit, {}, {}, compiling, size=2)

    assert [each.tobytes() for each in first] == [each.tobytes() for each in second]
    assert 1e-5 > _far(first, alone)


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compressed_gradients_train_nearly_as_well(tf_world, alone, compression):
    first, second = tf_world.run(_compressed, compression, size=2)

    assert [each.tobytes() for each in first] == [each.tobytes() for each in second]
    assert 1e-6 < _far(first, alone) < 0.05


def _compressed(rank, size, name):
    import smdist.dataparallel.tensorflow as sdp

    return _fit(rank, size, {"compression": getattr(sdp.Compression, name)}, {})


def _accumulated(rank, size, options, settings):
    """Weights, and how many all-reduces they took."""
    import smdist.dataparallel.tensorflow as sdp
    from smdist.dataparallel.tensorflow.op_library import compiled

    sdp.init()
    before = compiled().activity("all_reduce")[0]
    weights = _fit(rank, size, options, settings)
    return weights, compiled().activity("all_reduce")[0] - before


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {"gradient_accumulation_steps": 2}),
        ({"backward_passes_per_step": 2, "average_aggregated_gradients": True}, {}),
    ],
)
def test_accumulated_gradients_are_reduced_once_an_update(tf_world, options, settings):
    """Six updates of two passes: six all-reduces, and one that compares variables at the start."""
    [expected] = tf_world.run(_fit, {}, {"gradient_accumulation_steps": 2}, size=1)
    (first, operations), (second, _) = tf_world.run(_accumulated, options, settings, size=2)

    assert [each.tobytes() for each in first] == [each.tobytes() for each in second]
    assert 1e-5 > _far(first, expected)
    assert STEPS + 1 == operations


def test_gradients_of_passes_are_summed_by_default(tf_world):
    """As with Horovod; an update with their average is half as long."""
    passes = {"backward_passes_per_step": 2}
    [default] = tf_world.run(_fit, passes, {}, size=1)
    summed, averaged = (
        tf_world.run(_fit, passes | {"average_aggregated_gradients": value}, {}, size=1)[0]
        for value in (False, True)
    )

    assert [each.tobytes() for each in default] == [each.tobytes() for each in summed]
    assert _far(averaged, summed) > 0.01


def _scaled(rank, size, settings):
    """Steps of a LossScaleOptimizer of which one has a NaN on rank 1 alone."""
    import keras
    import tensorflow as tf

    import smdist.dataparallel.tensorflow.keras as hvd

    hvd.init()
    inner = keras.optimizers.SGD(0.5, **settings)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    )
    weight = keras.Variable([1.0, 2.0])
    optimizer.build([weight])
    found = []

    @tf.function
    def step(gradient):
        optimizer.apply([gradient], [weight])

    for number in range(6):
        bad = number == 2 and rank == 1
        step(tf.constant([float("nan") if bad else 8.0 * (rank + 1), 0.0]))
        found.append((float(optimizer.dynamic_scale), np.array(weight).tolist()))
    return found


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}])
def test_a_nan_on_one_rank_skips_the_step_on_all(tf_world, settings):
    """The scale is halved on both, and the weights stay equal and finite."""
    first, second = tf_world.run(_scaled, settings, size=2)

    assert first == second
    assert [8.0, 8.0, 4.0] == [scale for scale, _ in first[:3]]
    assert first[1][1] == first[2][1]
    assert all(np.isfinite(weights).all() for _, weights in first)
    assert first[-1][1] != first[2][1]


def _mixed(rank, size):
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd
    from sagemaker_dist.errors import OptionError

    hvd.init()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = _model(0)
    finally:
        keras.config.set_dtype_policy("float32")
    with pytest.raises(OptionError) as caught:
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), _loss())
    assert (("optimizer",), "wrapped") == (caught.value.about, caught.value.kind)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    model.compile(hvd.DistributedOptimizer(scaled), _loss())
    data = [_mine(rank, size, array) for array in _data()]
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(*data, batch_size=BATCH // size, verbose=0, callbacks=[start])
    return [each.tobytes() for each in _weights(model)]


def test_mixed_float16_wants_the_outermost_optimizer_wrapped(tf_world):
    """Where Keras would put loss scaling around ours it is refused; the other way round trains."""
    first, second = tf_world.run(_mixed, size=2)

    assert first == second


def _compiled_by_xla(rank, size):
    import keras
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp
    from sagemaker_dist.errors import OptionError

    sdp.init()
    model = _model(0)
    model.compile(sdp.DistributedOptimizer(keras.optimizers.SGD(0.1)), _loss(), jit_compile=True)
    data = [array[:4] for array in _data()]
    with pytest.raises(OptionError) as caught:
        model.fit(*data, verbose=0)
    assert ("jit_compile",) == caught.value.about
    reduce = tf.function(lambda value: sdp.allreduce(value), jit_compile=True, autograph=False)
    with pytest.raises(OptionError) as caught:
        reduce(tf.ones([2]))
    assert (
        "a collective of smdist was called in a function with jit_compile=True: XLA has no kernel"
        " for collectives. Pass jit_compile=False to this tf.function or to Model.compile();"
        " functions without collectives may keep jit_compile=True."
    ) == str(caught.value)


def test_xla_is_refused_with_the_hint(tf_world):
    tf_world.run(_compiled_by_xla, size=2)


def _auto(rank, size):
    """What "auto" means where Keras would take XLA, as it does on GPUs."""
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd
    from smdist.dataparallel.tensorflow.keras import jit_compile

    hvd.init()

    class OnGpu(keras.Sequential):
        def _resolve_auto_jit_compile(self):
            return True

    resolve = jit_compile.without_xla_if_distributed(OnGpu._resolve_auto_jit_compile)
    plain, ours = OnGpu(), OnGpu()
    plain.optimizer = keras.optimizers.SGD(0.1)
    ours.optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    return resolve(plain), resolve(ours)


def test_auto_is_no_xla_for_models_with_our_optimizer_only(tf_world):
    [found] = tf_world.run(_auto, size=1)

    assert (True, False) == found


_REPLICAS = """
import tensorflow as tf
import smdist.dataparallel.tensorflow as sdp

[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
sdp.init()
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
strategy.run(lambda: sdp.allreduce(tf.ones([1])))
"""


def test_replicas_within_a_process_are_refused():
    """MirroredStrategy's threads would call collectives in an order of their own."""
    done = subprocess.run(
        [sys.executable, "-c", _REPLICAS], capture_output=True, text=True, timeout=120
    )

    assert 1 == done.returncode
    assert "start one rank for each GPU" in done.stderr
