# SPDX-License-Identifier: Apache-2.0
"""Metrics of several replicas are those of one process that sees all samples."""

import numpy as np
import pytest

SAMPLES = 24
UNEQUAL = ([4, 4, 4, 2], [4, 4, 1, 1])  # samples of the batches of each replica


def evaluated(_rank, size, replicas):
    """Evaluate unequal batches, and train; return both results on each rank."""
    import keras
    from keras import layers, metrics

    import smdist.modelparallel.tensorflow as smp

    if size > 1:
        smp.init({"pipeline_parallel_degree": size // replicas, "microbatches": 2})
    keras.utils.set_random_seed(3)
    random = np.random.default_rng(4)
    x = random.standard_normal([SAMPLES, 4]).astype("float32")
    y = (x[:, :1] + random.standard_normal([SAMPLES, 1]) > 0).astype("float32")
    weights = random.random(SAMPLES).astype("float32")
    inputs = keras.Input([4])
    hidden = layers.Dense(6, activation="tanh", name="hidden")(inputs)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid", name="head")(hidden))
    if size > 1:
        model = smp.DistributedModel(model, costs="estimate")
    model.compile(
        keras.optimizers.SGD(0.1), "binary_crossentropy",
        metrics=[metrics.AUC(name="auc"), metrics.Precision(name="precision"),
                 metrics.BinaryIoU(name="iou"), "accuracy"],
        weighted_metrics=[metrics.MeanSquaredError(name="weighted")],
    )  # fmt: skip
    every, batch = np.arange(SAMPLES), 8 // replicas
    mine, sizes, even = every, [8, 8, 8], every
    if size > 1:
        mine, sizes = np.split(every, [14])[smp.dp_rank()], UNEQUAL[smp.dp_rank()]
        even = every.reshape(-1, replicas, batch)[:, smp.dp_rank()].ravel()
    parts = np.split(mine, np.cumsum(sizes)[:-1])
    batches = ((x[part], y[part], weights[part]) for part in parts)
    found = model.evaluate(batches, steps=len(parts), verbose=0, return_dict=True)
    logs = model.fit(x[even], y[even], batch_size=batch, shuffle=False, verbose=0, epochs=2).history
    return found, logs


@pytest.mark.parametrize(("size", "replicas"), [(2, 2), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_metrics_are_exact_for_unequal_batches(keras_world, size, replicas):
    """AUC, precision, IoU, accuracy, a weighted metric and the loss, in evaluate() and fit()."""
    answers = keras_world.run(evaluated, replicas, size=size, deadline=120)
    [(found, logs)] = keras_world.run(evaluated, 1, size=1, deadline=60)
    for mine, history in answers:
        assert set(found) == set(mine)
        for name, expected in found.items():
            np.testing.assert_allclose(mine[name], expected, rtol=1e-5, err_msg=name)
        for name, expected in logs.items():
            np.testing.assert_allclose(history[name], expected, rtol=1e-5, err_msg=name)


def with_state(_rank, _size, aggregation):
    """Train with a metric whose state has an aggregation; return its results or the error."""
    import keras
    from keras_models import MODELS, loss_of, made

    import smdist.modelparallel.tensorflow as smp
    from sagemaker_dist.errors import OptionError

    class Batches(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="batches")
            self.count = self.add_variable((), "zeros", aggregation=aggregation, name="count")

        def update_state(self, y, outputs, sample_weight=None):
            self.count.assign(self.count + 1.0 + smp.dp_rank())

        def result(self):
            return keras.ops.convert_to_tensor(self.count)

    smp.init({"pipeline_parallel_degree": 1, "microbatches": 2})
    model = smp.DistributedModel(made("residual"), costs="estimate")
    model.compile(optimizer="sgd", loss=loss_of("residual"), metrics=[Batches()])
    x, y = MODELS["residual"][1](8)
    try:
        return model.train_on_batch(x, y, return_dict=True)["batches"]
    except OptionError as error:
        return error.about, error.kind


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("sum", 6.0),
        ("mean", 3.0),
        ("only_first_replica", 2.0),
        ("none", (("metrics",), "unsupported")),
    ],
)
def test_states_are_joined_by_their_aggregation(keras_world, aggregation, expected):
    """Two microbatches count 2 on replica 0 and 4 on replica 1."""
    assert [expected] * 2 == keras_world.run(with_state, aggregation, size=2, deadline=60)
