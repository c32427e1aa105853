# SPDX-License-Identifier: Apache-2.0
"""Options, models and callbacks that a split Keras model does not support are refused by name."""

import pytest


def refused(rank, _size, config, change):
    """Return the fields of the error that a run raises."""
    import copy

    import keras
    import numpy as np
    from keras_models import MODELS, loss_of, made

    import smdist.modelparallel.tensorflow as smp
    from sagemaker_dist.errors import OptionError

    class Own(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    def normalized_twice():
        keras.backend.clear_session()
        x = inputs = keras.Input((8,))
        norm = keras.layers.BatchNormalization(name="norm")
        x = norm(keras.layers.Dense(8)(x))
        x = keras.layers.Dense(500)(x)
        return keras.Model(inputs, keras.layers.Dense(2)(norm(keras.layers.Dense(8)(x))))

    try:
        smp.init(config)
        name = "shared" if change == "other_model" and rank == 1 else "residual"
        inner = normalized_twice() if change == "twice" else made(name)
        if change == "compiled":
            inner.compile("sgd", "mse")
        if change == "stateful":
            steps = keras.Input(batch_shape=(2, 4, 2))
            x = keras.layers.LSTM(2, stateful=True, name="lstm")(steps)
            inner = keras.Model(steps, keras.layers.Dense(2)(x))
        if change == "train_step":
            inner = Own(inner.inputs, inner.outputs)
        model = smp.DistributedModel(inner, costs="estimate")
        options = {"jit_compile": True} if change == "jit_compile" else {}
        sums = {
            "sum": keras.losses.MeanSquaredError(reduction="sum"),
            "sum_function": lambda y, outputs: keras.ops.sum(keras.ops.square(y - outputs)),
        }
        loss = sums.get(change, loss_of(name))
        model.compile(optimizer="sgd", loss=loss, **options)
        x, y = MODELS[name][1](10 if change == "batch" else 8)
        if change == "backup":
            model.fit(x, y, callbacks=[keras.callbacks.BackupAndRestore("backup")])
        if change == "call":
            model(x)
        if change == "copy":
            copy.copy(model)
        if change == "stateful":
            model.fit(np.reshape(x, [8, 4, 2]), y, batch_size=8)
        if change == "width":
            model.fit(x[:, :6], y)
        model.train_on_batch(x, y)
        if change == "width_later":
            model.evaluate(x[:, :6], y, batch_size=8, verbose=0)
        model.train_on_batch(x[:6], y[:6])
    except OptionError as error:
        return error.about[:1], error.kind
    return None


TWO = {"pipeline_parallel_degree": 2, "microbatches": 4}


@pytest.mark.parametrize(
    ("config", "change", "about", "kind"),
    [
        ({**TWO, "tensor_parallel_degree": 2}, "", "tensor_parallel_degree", "unsupported"),
        ({**TWO, "pipeline": "zero_bubble", "virtual_stages": 1}, "", "pipeline", "unsupported"),
        (TWO, "jit_compile", "jit_compile", "unsupported"),
        (TWO, "sum", "loss", "unsupported"),
        (TWO, "sum_function", "loss", "unsupported"),
        (TWO, "batch", "microbatches", "indivisible"),
        (TWO, "", "microbatches", "indivisible"),
        (TWO, "call", "model", "outside"),
        (TWO, "compiled", "model", "conflict"),
        (TWO, "train_step", "train_step", "unsupported"),
        (TWO, "twice", "model", "divided_state"),
        (TWO, "backup", "callbacks", "unsupported"),
        (TWO, "copy", "model", "unsupported"),
        (TWO, "stateful", "stateful", "unsupported"),
        (TWO, "width", "inputs", "shape"),
        (TWO, "width_later", "inputs", "shape"),
        (TWO, "other_model", "model", "difference"),
    ],
)
def test_refusals(keras_world, config, change, about, kind):
    """Every rank raises the same error."""
    first, second = keras_world.run(refused, config, change, size=2, deadline=60)

    assert ((about,), kind) == first == second
