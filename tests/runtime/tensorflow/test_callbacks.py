# SPDX-License-Identifier: Apache-2.0
"""Callbacks of fit(), by their numbers; saved models that go on."""

import math

import numpy as np
import pytest


def _model(settings=None, optimizer="SGD"):
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    hvd.init()
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    plain = getattr(keras.optimizers, optimizer)(0.5, **(settings or {}))
    model.compile(hvd.DistributedOptimizer(plain), "mse", metrics=["mae"])
    return model, hvd


def _data(rank=0):
    random = np.random.default_rng(rank)
    return random.normal(size=(16, 3)), random.normal(size=(16, 1))


def _rates():
    """A callback that notes the learning rate of each batch."""
    import keras

    class Rates(keras.callbacks.Callback):
        seen = ()

        def on_train_batch_end(self, batch, logs=None):
            self.seen = (*self.seen, float(self.model.optimizer.learning_rate))

    return Rates()


def _first_values(rank, size, root):
    import keras

    keras.utils.set_random_seed(rank)
    model, hvd = _model({"momentum": 0.9})
    mine = np.array(model.variables[0]).tolist()
    model.optimizer.learning_rate = 0.0 if rank == root else 7.0
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(root)
    model.fit(*_data(), batch_size=4, verbose=0, callbacks=[start])
    model.optimizer.learning_rate = float(rank)
    model.fit(*_data(), batch_size=4, verbose=0, callbacks=[start], epochs=0)
    return mine, np.array(model.variables[0]).tolist(), float(model.optimizer.learning_rate)


@pytest.mark.parametrize("root", [0, 1])
def test_training_begins_with_one_ranks_values(tf_world, root):
    """Before the first batch, model and optimizer, and once only."""
    found = tf_world.run(_first_values, root, size=2)
    begun = [first for first, _, _ in found]

    assert begun[0] != begun[1]
    assert [begun[root]] * 2 == [after for _, after, _ in found]  # whose learning rate is 0
    assert [0.0, 1.0] == [rate for _, _, rate in found]


def _uneven(rank, size, batches):
    from sagemaker_dist.errors import OptionError

    model, hvd = _model()
    x, y = _data()
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    rows = 4 * batches[rank]
    try:
        model.fit(x[:rows], y[:rows], batch_size=4, verbose=0, epochs=2, callbacks=[start])
    except OptionError as error:
        return error.about, error.kind, error.why
    return None


def test_ranks_with_fewer_batches_are_named_before_the_first_one(tf_world):
    """Every rank raises the same error, and equal numbers pass."""
    first, second = tf_world.run(_uneven, (4, 3), size=2)

    assert first == second
    assert (("data",), "difference") == first[:2]
    assert "rank 0 has 4, rank 1 has 3" in first[2]
    assert [None, None] == tf_world.run(_uneven, (3, 3), size=2)


def _built_late(rank, size):
    """A subclass that is built by its first batch in a loop of its own."""
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    hvd.init()
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(*_data(rank), batch_size=4, verbose=0, callbacks=[start])
    return [np.array(each).tobytes() for each in model.variables]


def test_models_that_fit_builds_begin_alike(tf_world):
    first, second = tf_world.run(_built_late, size=2)

    assert first == second


def _dropping(rank, size):
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    hvd.init()
    keras.utils.set_random_seed(rank)
    dropout = keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1), dropout])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(*_data(rank), verbose=0, callbacks=[start])
    weights = [np.array(each).tobytes() for each in model.weights]
    return weights, np.array(dropout.seed_generator.state).tolist()


def test_ranks_drop_different_units(tf_world):
    """Weights begin alike; states of random numbers do not."""
    (first, state), (second, other_state) = tf_world.run(_dropping, size=2)

    assert first == second
    assert state != other_state


def _averaged(rank, size):
    import keras

    model, hvd = _model()
    model.optimizer.learning_rate = 0.0
    model.set_weights([np.ones((3, 1)), np.zeros(1)])
    data, seen = _data(rank), []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs)))
    average = hvd.callbacks.MetricAverageCallback()
    history = model.fit(
        *data, validation_data=_data(rank + 5), verbose=0, callbacks=[average, watch]
    ).history
    loss, mae = model.evaluate(*data, verbose=0)
    return loss, mae, seen[0], {name: values[0] for name, values in history.items()}


def test_metrics_are_averages_over_ranks(tf_world):
    """For later callbacks and for the history, also those of validation."""
    (loss, mae, seen, history), (other_loss, other_mae, other_seen, _) = tf_world.run(
        _averaged, size=2
    )

    assert seen == other_seen == history
    assert (loss + other_loss) / 2 == pytest.approx(seen["loss"], rel=1e-5)
    assert (mae + other_mae) / 2 == pytest.approx(seen["mae"], rel=1e-5)
    assert {"loss", "mae", "val_loss", "val_mae"} == set(seen)


def _warmed_up(rank, size):
    model, hvd = _model()
    rates = _rates()
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2, verbose=1)
    history = model.fit(*_data(), batch_size=4, epochs=3, verbose=0, callbacks=[warmup, rates])
    return rates.seen, history.history["lr"]


def test_the_learning_rate_warms_up_from_its_share_to_the_whole(tf_world):
    """Horovod's formula: initial_lr / size * (epoch * (size - 1) / warmup_epochs + 1)."""
    batches = 4
    wanted = [0.8 / 2 * ((number + 1) / batches * (2 - 1) / 2 + 1) for number in range(8)]
    for seen, history in tf_world.run(_warmed_up, size=2):
        assert [*wanted, *[0.8] * 4] == pytest.approx(list(seen), rel=1e-6)
        assert [0.6, 0.8, 0.8] == pytest.approx(history, rel=1e-6)


def _scheduled(rank, size):
    model, hvd = _model()
    rates = _rates()
    schedule = hvd.callbacks.LearningRateScheduleCallback
    parts = [
        schedule(1.0, 0.5, end_epoch=1),
        schedule(1.0, lambda epoch: 10.0**-epoch, start_epoch=1, end_epoch=3),
        schedule(1.0, lambda epoch: epoch, start_epoch=3, staircase=False),
    ]
    model.fit(*_data(), batch_size=8, epochs=4, verbose=0, callbacks=[*parts, rates])
    return rates.seen


def test_the_learning_rate_follows_its_schedule(tf_world):
    [seen] = tf_world.run(_scheduled, size=1)

    assert [0.5, 0.5, 0.1, 0.1, 0.01, 0.01, 3.0, 3.5] == pytest.approx(list(seen), rel=1e-6)


def _corrected(rank, size, correction):
    """A weight after three steps with a gradient of one, whose rate halves after the first."""
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    hvd.init()
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(1.0, momentum=0.5), loss=lambda wanted, got: got)
    model.set_weights([np.zeros((1, 1))])
    halved = hvd.callbacks.LearningRateScheduleCallback(
        1.0, lambda epoch: 0.5 if epoch else 1.0, momentum_correction=correction
    )
    ones = np.ones((1, 1))
    model.fit(ones, ones, epochs=3, verbose=0, callbacks=[halved])
    return float(model.get_weights()[0][0, 0])


@pytest.mark.parametrize(
    # Velocities, as Horovod's changed coefficient gives them: v = m (new / old) v - lr g.
    ("correction", "velocities"),
    [(True, [-1.0, -0.75, -0.875]), (False, [-1.0, -1.0, -1.0])],
)
def test_momentum_follows_the_learning_rate(tf_world, correction, velocities):
    [weight] = tf_world.run(_corrected, correction, size=1)

    assert sum(velocities) == pytest.approx(weight, rel=1e-6)


def _refused(rank, size):
    import keras

    from sagemaker_dist.errors import OptionError

    def refused(call):
        with pytest.raises(OptionError) as caught:
            call()
        return caught.value

    def wrapping(**arguments):
        return refused(lambda: hvd.DistributedOptimizer(plain, **arguments))

    model, hvd = _model()
    callbacks, wrap = hvd.callbacks, hvd.DistributedOptimizer
    root = refused(lambda: callbacks.BroadcastGlobalVariablesCallback(4))
    assert ("root_rank",) == root.about
    assert ("device",) == refused(lambda: callbacks.MetricAverageCallback(device="/gpu:0")).about
    none = refused(lambda: callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=0))
    assert ("warmup_epochs",) == none.about
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    model.compile(wrap(keras.optimizers.SGD(rate)), "mse")
    warmup = callbacks.LearningRateWarmupCallback(0.1)
    fit = refused(lambda: model.fit(*_data(), verbose=0, callbacks=[warmup]))
    assert ("learning_rate",) == fit.about
    again = refused(lambda: wrap(model.optimizer))
    assert (("optimizer",), "wrapped") == (again.about, again.kind)
    accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    twice = refused(lambda: wrap(accumulating, backward_passes_per_step=2))
    assert (("backward_passes_per_step",), "conflict") == (twice.about, twice.kind)
    plain = keras.optimizers.SGD(0.1)
    assert ("use_locking",) == wrapping(use_locking=True).about
    both = wrapping(fusion_bytes=2**20, bucket_cap_mb=1)
    assert (("fusion_bytes",), "conflict") == (both.about, both.kind)
    assert ("num_groups",) == wrapping(num_groups=-1).about
    for misspelt, meant in (
        ("bucket_cap", "bucket_cap_mb"),
        ("backward_pases_per_step", "backward_passes_per_step"),
    ):
        unknown = wrapping(**{misspelt: 2})
        assert ((misspelt,), "unknown") == (unknown.about, unknown.kind)
        assert repr(meant) in unknown.hint
    unknown = wrapping(xyz=2)
    assert (("xyz",), "unknown") == (unknown.about, unknown.kind)
    assert "'backward_passes_per_step'" in unknown.hint
    assert "locking" not in unknown.hint  # an argument of Horovod, which is refused
    assert ("op",) == wrapping(op=hvd.Min).about
    for misspelt in (
        lambda: callbacks.LearningRateWarmupCallback(0.1, warmup_epoch=1),
        lambda: callbacks.BroadcastGlobalVariablesCallback(rootrank=0),
        lambda: callbacks.StopCallback(every_batch=1),
    ):
        assert "unknown" == refused(misspelt).kind
    assert ("process_set",) == wrapping(process_set=[0]).about
    assert ("scale_local_gradients",) == wrapping(scale_local_gradients=False).about
    wrap(plain, bucket_cap_mb=2, process_set=None, use_locking=False)
    assert ("optimizer",) == refused(lambda: wrap("sgd")).about


def test_callbacks_and_optimizers_refuse_what_cannot_be(tf_world):
    tf_world.run(_refused, size=1)


def _checkpointed(rank, size, folder):
    model, hvd = _model()
    best = hvd.callbacks.BestModelCheckpoint(f"{folder}/best-{rank}.keras", monitor="loss")
    every = hvd.callbacks.ModelCheckpoint(
        f"{folder}/{{epoch}}-{rank}.weights.h5", save_weights_only=True
    )
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(*_data(rank), epochs=2, verbose=0, callbacks=[start, best, every])


def test_rank_0_alone_writes_checkpoints(tf_world, tmp_path):
    tf_world.run(_checkpointed, str(tmp_path), size=2)

    assert ["1-0.weights.h5", "2-0.weights.h5", "best-0.keras"] == sorted(
        path.name for path in tmp_path.iterdir()
    )


def _saved(rank, size, folder, optimizer, settings):
    """Save after one epoch, train on, and train the loaded model as far."""
    import json
    import zipfile

    import keras

    model, hvd = _model(settings, optimizer)
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(*_data(rank), batch_size=4, verbose=0, callbacks=[start], shuffle=False)
    path = f"{folder}/{optimizer}-{rank}.keras"
    model.save(path)
    loaded = hvd.load_model(path)
    plain = keras.saving.load_model(path)
    for each in (model, loaded):
        each.fit(*_data(rank), batch_size=4, verbose=0, shuffle=False)
    with zipfile.ZipFile(path) as file:
        document = json.loads(file.read("config.json"))["compile_config"]["optimizer"]
    equal = [
        np.array(one).tobytes() == np.array(other).tobytes()
        for one, other in zip(model.variables, loaded.variables, strict=True)
    ]
    names = (document["module"], document["class_name"])
    kinds = (
        type(plain.optimizer).__module__.split(".")[0],
        type(loaded.optimizer) is type(model.optimizer),
    )
    return (
        equal,
        names,
        kinds,
        int(plain.optimizer.iterations),
        np.array(loaded.variables[0]).tobytes(),
    )


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [("Adam", {}), ("SGD", {"momentum": 0.9, "gradient_accumulation_steps": 2})],
)
def test_a_saved_model_goes_on_with_its_optimizers_state(tf_world, tmp_path, optimizer, settings):
    """It is a plain Keras model in the file, and a distributed one again after load_model()."""
    first, second = tf_world.run(_saved, str(tmp_path), optimizer, settings, size=2)

    assert all(first[0])
    assert ("keras.optimizers", optimizer) == first[1]
    assert ("keras", True) == first[2]
    assert 4 // settings.get("gradient_accumulation_steps", 1) == first[3]
    assert first[4] == second[4]


def _loss_scaled(rank, size, folder):
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    hvd.init()
    inner = keras.optimizers.SGD(0.5, momentum=0.9)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0)
    model.compile(hvd.DistributedOptimizer(scaled), "mse")
    model.fit(*_data(), verbose=0, batch_size=4)
    model.save(f"{folder}/scaled-{rank}.keras")
    loaded = hvd.load_model(f"{folder}/scaled-{rank}.keras")
    own, its = model.optimizer.variables, loaded.optimizer.variables
    pairs = zip(own, its, strict=True)
    return all(np.array_equal(np.array(one), np.array(other)) for one, other in pairs), len(own)


def test_loss_scaling_is_saved_with_its_state(tf_world, tmp_path):
    """Count and rate of both optimizers, the scale and its counter, two velocities."""
    assert [(True, 8)] == tf_world.run(_loss_scaled, str(tmp_path), size=1)


def test_the_warm_up_is_a_line():
    from smdist.dataparallel.tensorflow.keras.learning_rate import warmup_factor

    assert 0.25 == warmup_factor(0, 4, 2)
    assert math.isclose(0.625, warmup_factor(1, 4, 2))
    assert 1 == warmup_factor(2, 4, 2)
