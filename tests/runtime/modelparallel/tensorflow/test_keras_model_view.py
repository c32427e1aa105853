# SPDX-License-Identifier: Apache-2.0
"""Callbacks and scripts find in a split model what they find in a model of Keras."""

import numpy as np

BATCH, SAMPLES = 8, 32


def best(_rank, size):
    """Fit with EarlyStopping that restores; return what the model is and shows afterwards."""
    import keras
    from keras import layers

    import smdist.modelparallel.tensorflow as smp

    keras.config.set_floatx("float64")
    if size > 1:
        smp.init({"pipeline_parallel_degree": 2, "microbatches": 4})
    keras.backend.clear_session()  # names of layers are equal on all ranks
    keras.utils.set_random_seed(3)
    hidden = [layers.Dense(8, activation="tanh", name=f"hidden{number}") for number in range(3)]
    model = keras.Sequential([keras.Input((8,)), *hidden, layers.Dense(8, name="head")])
    if size > 1:
        model = smp.DistributedModel(model, costs="estimate")
    lines = []
    model.compile(optimizer=keras.optimizers.SGD(), loss="mse")
    x, y = np.random.default_rng(0).standard_normal((2, SAMPLES, 8))
    stop = keras.callbacks.EarlyStopping("loss", patience=2, restore_best_weights=True)
    rate = keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 if epoch < 2 else -0.05)
    fitted = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    losses = model.fit(x, y, epochs=8, callbacks=[stop, rate], **fitted).history["loss"]
    restored = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    model.summary(print_fn=lambda text, **_: lines.extend(text.splitlines()))
    totals = [line for line in lines if "Total params" in line] if size > 1 else []
    shown = [each.name for each in model.layers], model.count_params()
    shapes = [each.shape for each in model.get_weights()]
    model.trainable = False
    model.compile(optimizer="sgd", loss="mse")
    model.fit(x, y, **fitted)
    frozen = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    return losses, restored, frozen, shown, shapes, totals


def test_callbacks_read_and_restore_weights(keras_world):
    """The best weights return, and layers, their number of weights and `trainable` are known."""
    first, second = keras_world.run(best, size=2, deadline=120)
    [(losses, restored, _, shown, shapes, _)] = keras_world.run(best, size=1, deadline=60)

    assert losses[-1] > losses[1] < losses[0], "the last weights are the best"
    for found in (first, second):
        np.testing.assert_allclose(found[0], losses, rtol=1e-9)
        np.testing.assert_allclose(found[1], restored, rtol=1e-9)
        assert found[1] == found[2], "a frozen model was trained"
        assert shown == found[3]
        assert f"{shown[1]:,}" in found[5][0]
    assert sorted(shapes) == sorted(first[4] + second[4])


def fine_tuned(_rank, size, path):
    """Train with a frozen first stage, and save; return what the optimizer counts on this rank."""
    import keras
    from keras import layers

    import smdist.modelparallel.tensorflow as smp

    keras.config.set_floatx("float32")
    keras.backend.clear_session()  # names of layers are equal on all ranks
    keras.utils.set_random_seed(3)
    if size > 1:
        smp.init({
            "pipeline_parallel_degree": 2, "microbatches": 4, "auto_partition": False,
            "default_partition": 0,
        })  # fmt: skip
    head = layers.Dense(2, name="head")
    frozen = [layers.Dense(8, trainable=False, name=f"frozen{number}") for number in range(2)]
    model = keras.Sequential([keras.Input((8,)), *frozen, head])
    if size > 1:
        smp.set_partition(head, 1)
        model = smp.DistributedModel(model, costs="estimate")
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Nadam(0.01), initial_scale=2.0**127, dynamic_growth_steps=4
    )
    model.compile(optimizer=optimizer, loss="mse")
    x, y = np.random.default_rng(0).standard_normal((2, SAMPLES, 8)).astype("float32")
    model.fit(x, 100 * y[:, :2], batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
    model.save(path)
    return int(optimizer.iterations), float(optimizer.dynamic_scale)


def numbers_of(_rank, _size, paths):
    """Return the optimizer's numbers in each file, as Keras alone loads them."""
    import keras

    return [
        [float(each) for each in keras.models.load_model(path).optimizer.variables if not each.ndim]
        for path in paths
    ]


def test_a_stage_without_trained_weights_counts_steps(keras_world, tmp_path):
    """Its optimizer counts what others count, and a checkpoint has the numbers of one process."""
    paths = [str(tmp_path / name) for name in ("two.keras", "one.keras")]
    first, second = keras_world.run(fine_tuned, paths[0], size=2, deadline=90)
    [alone] = keras_world.run(fine_tuned, paths[1], size=1, deadline=60)
    [(two, one)] = keras_world.run(numbers_of, paths, size=1, deadline=60)

    assert 0 < alone[0] < 3 * SAMPLES // BATCH, "no step was skipped, or all were"
    assert alone == first == second
    np.testing.assert_allclose(two, one, rtol=1e-6)


def cloned(_rank, _size):
    """Train a clone of a model that is split; return what differs from the model."""
    import keras
    from keras_models import MODELS, loss_of, made

    import smdist.modelparallel.tensorflow as smp

    smp.init({"pipeline_parallel_degree": 2, "microbatches": 2})
    model = smp.DistributedModel(made("residual"), costs="estimate")
    model.compile(optimizer="sgd", loss=loss_of("residual"))
    x, y = MODELS["residual"][1](8)
    model.train_on_batch(x, y)
    clone = keras.models.clone_model(model)
    clone.compile(optimizer="sgd", loss=loss_of("residual"))
    clone.train_on_batch(x, y)
    return (
        type(clone) is type(model), clone.plan.stages == model.plan.stages,
        len(clone.own_values()) == len(model.own_values()),
        clone.whole_model() is not model.whole_model(), clone.count_params(),
    )  # fmt: skip


def test_a_clone_is_a_model_of_its_own(keras_world):
    """keras.models.clone_model makes a distributed model with the same layers and stages."""
    [first, second] = keras_world.run(cloned, size=2, deadline=60)

    assert first == second
    assert (True, True, True, True) == first[:4]
    assert first[4] > 0
