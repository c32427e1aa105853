# SPDX-License-Identifier: Apache-2.0
"""Twenty steps in float32 and under mixed dtype policies, beside one process."""

from contextlib import contextmanager

import numpy as np
import pytest

BATCH, STEPS = 16, 20
POLICIES = {"float32": 1e-5, "mixed_bfloat16": 0.03, "mixed_float16": 0.01}  # largest difference


def made_net():
    """Return a model whose widths make sums of many terms."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(4)
    inputs = layers.Input((32,))
    x = skip = layers.Dense(48, activation="relu", name="a")(inputs)
    x = layers.LayerNormalization(name="norm")(layers.Dense(48, name="b")(x))
    x = layers.Dense(48, activation="tanh", name="c")(layers.Add(name="sum")([x, skip]))
    return keras.Model(inputs, layers.Dense(4, dtype="float32", name="head")(x))


def data():
    """Return all samples in float32."""
    numbers = np.random.default_rng(2)
    x = numbers.standard_normal([BATCH * STEPS, 32]).astype("float32")
    return x, np.tanh(x[:, :4] * 2)


@contextmanager
def computing(policy):
    """Set the policy of dtypes, and then that of the other tests of these ranks again."""
    import keras

    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")


def staged(_rank, _size, policy):
    """Train in two stages; return losses, dtypes of variables, and the scale of the loss."""
    import keras

    import smdist.modelparallel.tensorflow as smp

    with computing(policy):
        smp.init({"pipeline_parallel_degree": 2, "microbatches": 4})
        model = smp.DistributedModel(made_net(), costs="estimate")
        model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
        x, y = data()
        losses = []
        for step in range(STEPS):
            part = slice(step * BATCH, (step + 1) * BATCH)
            losses.append(model.train_on_batch(x[part], y[part], return_dict=True)["loss"])
            model.reset_metrics()
        dtypes = {each.dtype.name for each in model.own_values().values()}
        return losses, dtypes, float(getattr(model.optimizer, "dynamic_scale", 1.0))


def alone(_rank, _size):
    """Train in one process in float32 with whole batches; return losses."""
    import keras

    with computing("float32"):
        model = made_net()
        model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
        x, y = data()
        losses = []
        for step in range(STEPS):
            part = slice(step * BATCH, (step + 1) * BATCH)
            losses.append(float(model.train_on_batch(x[part], y[part], return_dict=True)["loss"]))
            model.reset_metrics()
        return losses


def test_losses_of_twenty_steps(keras_world):
    """Losses differ from one process in float32 by rounding alone; weights stay in float32."""
    [expected] = keras_world.run(alone, size=1, deadline=90)
    scales = {}
    for policy, limit in POLICIES.items():
        for losses, dtypes, scale in keras_world.run(staged, policy, size=2, deadline=120):
            difference = np.max(np.abs(np.divide(losses, expected) - 1))
            assert difference <= limit, policy
            assert {"float32"} == dtypes
            scales[policy] = scale

    assert expected[-1] < expected[0] / 2
    assert {
        "float32": 1.0,
        "mixed_bfloat16": 1.0,
        "mixed_float16": pytest.approx(2.0**15),
    } == scales
