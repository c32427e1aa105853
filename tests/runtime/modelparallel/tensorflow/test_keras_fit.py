# SPDX-License-Identifier: Apache-2.0
"""Options of compile() and fit() do on a split model what they do on one process."""

import signal
from pathlib import Path

import numpy as np
import pytest

BATCH, SAMPLES = 8, 32


def options_of(case):
    """Return optimizer, options of compile() and of fit(), and the name of the model."""
    import keras

    name = "gpt" if case == "manual" else "shared"  # its last layer is called once
    sgd = keras.optimizers.SGD(0.1)
    weights = np.random.default_rng(5).random(SAMPLES)
    compiled, fitted = {}, {"epochs": 2}
    if case == "weights":
        compiled = {"steps_per_execution": 2, "weighted_metrics": ["mae"]}
        fitted = {"epochs": 3, "initial_epoch": 1, "sample_weight": weights}
        fitted["validation_split"] = 0.5
    if case == "ema":
        sgd = keras.optimizers.SGD(
            0.1, momentum=0.9, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
        )
    if case == "scale":
        sgd = keras.optimizers.LossScaleOptimizer(
            sgd, initial_scale=2.0**10, dynamic_growth_steps=3
        )
    if case == "clipvalue":
        sgd = keras.optimizers.SGD(0.1, clipvalue=0.01)
    if case == "schedule":
        sgd = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))
    if case == "metrics":
        compiled = {"metrics": ["mae", keras.metrics.RootMeanSquaredError()]}
    return name, sgd, compiled, fitted


def fit(_rank, size, case, folder):
    """Train by fit(); return the history, this rank's variables, and what a checkpoint has."""
    import keras
    from keras_models import MODELS, loss_of, made

    import smdist.modelparallel.tensorflow as smp

    keras.config.set_floatx("float64")
    if size > 1:
        manual = {"auto_partition": False, "default_partition": 0} if case == "manual" else {}
        smp.init({"pipeline_parallel_degree": 2, "microbatches": 4, **manual})
    name, optimizer, compiled, fitted = options_of(case)
    model = made(name)
    if size > 1:
        if case == "manual":
            for layer in model.layers[-2:]:
                smp.set_partition(layer, 1)
        model = smp.DistributedModel(model, costs="estimate")
    model.compile(optimizer=optimizer, loss=loss_of(name), **compiled)
    x, y = MODELS[name][1](SAMPLES)
    path = Path(folder, f"best{size}.weights.h5")
    if case == "checkpoint":
        saver = keras.callbacks.ModelCheckpoint(
            path, monitor="loss", save_best_only=True, save_weights_only=True
        )
        fitted["callbacks"] = [saver, keras.callbacks.EarlyStopping("loss", patience=9)]
    history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, **fitted).history
    loss = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    predicted = model.predict(x[:4], verbose=0)
    values = model.own_values() if size > 1 else {v.path: v.numpy() for v in model.variables}
    saved = {}
    if case == "checkpoint":
        again = made(name)
        again.load_weights(path)
        saved = {v.path: v.numpy() for v in again.variables}
    scale = getattr(optimizer, "dynamic_scale", None)
    if size > 1 and case == "manual":
        assert [set(stage) for stage in model.plan.stages][1] == {"head", "block3_out"}
    return history, loss, predicted, values, saved, None if scale is None else float(scale)


@pytest.mark.parametrize(
    "case",
    [
        "weights",
        "checkpoint",
        "scale",
        pytest.param("ema", marks=pytest.mark.slow),
        pytest.param("clipvalue", marks=pytest.mark.slow),
        pytest.param("schedule", marks=pytest.mark.slow),
        pytest.param("metrics", marks=pytest.mark.slow),
        pytest.param("manual", marks=pytest.mark.slow),
    ],
)
def test_options_of_fit(keras_world, case, tmp_path):
    """History, weights and files are those of Keras's own fit."""
    answers = keras_world.run(fit, case, str(tmp_path), size=2, deadline=120)
    [alone] = keras_world.run(fit, case, str(tmp_path), size=1, deadline=120)
    history, loss, predicted, values, saved, scale = alone
    seen = {}
    for mine in answers:
        assert set(history) == set(mine[0])
        for name, expected in history.items():
            np.testing.assert_allclose(mine[0][name], expected, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(mine[1], loss, rtol=1e-6)
        np.testing.assert_allclose(mine[2], predicted, rtol=1e-9)
        assert scale == mine[5]
        seen |= mine[3]
        for path, value in mine[4].items():
            np.testing.assert_allclose(value, saved[path], rtol=1e-9, err_msg=path)

    assert set(values) == set(seen)
    for path, value in seen.items():
        np.testing.assert_allclose(value, values[path], rtol=1e-8, atol=1e-10, err_msg=path)


def two_models(_rank, size):
    """Train a subclassed model, and then one with two outputs; what evaluate() returns of both."""
    import keras

    import smdist.modelparallel.tensorflow as smp

    class Residual(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = [keras.layers.Dense(6, activation="tanh") for _ in range(3)]

        def call(self, x):
            for layer in self.hidden:
                x = x + layer(x)
            return x

    keras.config.set_floatx("float64")
    if size > 1:
        smp.init({"pipeline_parallel_degree": 2, "microbatches": 4})
    data = np.random.default_rng(3).random([SAMPLES, 6])
    found = []
    for number in range(2):
        keras.utils.set_random_seed(number)
        model, targets = Residual(), data
        compiled = {"loss": "mse", "metrics": ["mae"], "weighted_metrics": ["mae"]}
        if number:
            inputs = keras.Input([6])
            both = keras.layers.Add()([inputs, keras.layers.Dense(6)(inputs)])
            outputs = {name: keras.layers.Dense(1, name=name)(both) for name in ("up", "down")}
            model = keras.Model(inputs, outputs)
            targets = {"up": data[:, :1], "down": data[:, 1:2]}
            compiled = {"loss": {"up": "mse", "down": "mae"}, "metrics": {"up": ["mse", "mae"]}}
        if size > 1:
            model = smp.DistributedModel(model, costs="estimate")
        model.compile(optimizer=keras.optimizers.SGD(0.1), **compiled)
        model.fit(data, targets, batch_size=BATCH, shuffle=False, verbose=0)
        found.append(model.evaluate(data, targets, batch_size=BATCH, verbose=0))
        found.append(model.test_on_batch(data[:BATCH], keras.tree.map_structure(
            lambda each: each[:BATCH], targets
        )))  # fmt: skip
    return found


def test_a_second_model_trains_and_evaluate_has_the_order_of_keras(keras_world):
    """Keras's automatic names are those of one process, on every rank and for each model."""
    answers = keras_world.run(two_models, size=2, deadline=120)
    [alone] = keras_world.run(two_models, size=1, deadline=120)
    for mine in answers:
        for found, expected in zip(mine, alone, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def clipped(_rank, size):
    """Clip the gradients of an own loop by the norm of the whole model."""
    import keras
    from keras_models import MODELS, made

    import smdist.modelparallel.tensorflow as smp

    keras.config.set_floatx("float64")
    smp.init({"pipeline_parallel_degree": 2, "microbatches": 4, "gradient_clipping": 0.05})
    model = smp.DistributedModel(made("shared"), costs="estimate")

    @smp.step
    def train_step(x, y):
        loss = keras.losses.MeanSquaredError()(y, model(x, training=True))
        return smp.gradients(loss, model.trainable_variables), loss

    x, y = MODELS["shared"][1](BATCH)
    gradients, _ = train_step(x, y)
    found = [each.accumulate() for each in gradients]
    return {
        variable.path: np.asarray(each)
        for variable, each in zip(model.trainable_variables, found, strict=True)
    }


def test_gradients_of_an_own_loop_are_clipped(keras_world):
    """The norm of all ranks' gradients together is the limit."""
    first, second = keras_world.run(clipped, size=2, deadline=90)
    total = sum(float((each**2).sum()) for each in {**first, **second}.values())

    assert abs(total**0.5 - 0.05) < 1e-9


def killed(rank, _size):
    """Train until rank 1 kills itself in the second epoch; return the other rank's error."""
    import os
    import time

    import keras
    from keras_models import MODELS, loss_of, made

    import smdist.modelparallel.tensorflow as smp

    smp.init({"pipeline_parallel_degree": 2, "microbatches": 4})
    model = smp.DistributedModel(made("shared"), costs="estimate")
    model.compile(optimizer="sgd", loss=loss_of("shared"))
    times = []

    class Killer(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            times.append(time.monotonic())
            if rank == 1 and epoch == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    x, y = MODELS["shared"][1](BATCH)
    try:
        model.fit(x, y, batch_size=BATCH, epochs=50, verbose=0, callbacks=[Killer()])
    except Exception as error:
        return str(error), time.monotonic() - times[-1]
    return None


def test_a_rank_that_is_killed_is_named(keras_world):
    """The other rank's step fails within seconds."""
    (has_answer, answer), (has_survived, _) = keras_world.outcomes(killed, size=2, deadline=60)
    text, seconds = answer

    assert has_answer
    assert not has_survived
    assert "rank 1" in text
    assert seconds < 10


def interrupted(rank, _size, folder):
    """Train four epochs, with SIGTERM to rank 1 in the second one, and resume; and without."""
    import os

    import keras
    from keras_models import MODELS, loss_of, made

    import smdist.dataparallel.tensorflow.keras as hvd
    import smdist.modelparallel.tensorflow as smp

    class Interruption(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if rank == 1 and epoch == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    def ready():
        model = smp.DistributedModel(made("residual"), costs="estimate")
        model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss_of("residual"))
        return model

    keras.config.set_floatx("float64")
    smp.init({"pipeline_parallel_degree": 2, "microbatches": 4})
    x, y = MODELS["residual"][1](SAMPLES)
    options = {"batch_size": BATCH, "epochs": 4, "shuffle": False, "verbose": 0}
    whole = ready()
    losses = whole.fit(x, y, **options).history["loss"]
    first, stop = ready(), hvd.callbacks.StopCallback()
    begun = first.fit(x, y, callbacks=[Interruption(), stop], **options).history["loss"]
    first.save(Path(folder, "model.keras"))
    second = ready()
    epoch = second.load_checkpoint(Path(folder, "model.keras"))
    ended = second.fit(x, y, initial_epoch=epoch, **options).history["loss"]
    equal = [np.array_equal(v, second.own_values()[n]) for n, v in whole.own_values().items()]
    return stop.is_stopped, epoch, losses == begun + ended, all(equal)


@pytest.mark.slow
def test_an_interrupted_training_resumes_with_the_same_bits(keras_world, tmp_path):
    """SIGTERM to one rank ends fit() on all after the same epoch."""
    answers = keras_world.run(interrupted, str(tmp_path), size=2, deadline=150)

    assert [(True, 2, True, True)] * 2 == answers
