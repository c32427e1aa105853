# SPDX-License-Identifier: Apache-2.0
"""SMP v1's names for TensorFlow: a subclass of DistributedModel, checkpoints by number, objects."""

import numpy as np
import pytest

BATCH, STEPS, WIDTH = 8, 4, 6


def subclass_of(base, **kwargs):
    """Return a model class with call(), whose base is keras.Model or smp.DistributedModel."""
    import keras
    from keras import layers

    class Net(base):
        """Skip connection, BatchNormalization, and a layer that is called twice."""

        def __init__(self, **kwargs):
            super().__init__(name="net", **kwargs)
            init = keras.initializers.GlorotUniform(seed=3)
            self.first = layers.Dense(WIDTH, activation="tanh", kernel_initializer=init, name="a")
            self.norm = layers.BatchNormalization(name="norm")
            self.twice = layers.Dense(WIDTH, kernel_initializer=init, name="twice")
            self.head = layers.Dense(2, kernel_initializer=init, name="head")

        def call(self, x, training=None):
            x = skip = self.first(x)
            x = self.twice(self.norm(self.twice(x), training=training))
            return self.head(x + skip)

    return Net(**kwargs)


def data():
    """Return all batches."""
    numbers = np.random.default_rng(1)
    return numbers.standard_normal([BATCH * STEPS, 5]), numbers.standard_normal([BATCH * STEPS, 2])


def aws_script(_rank, _size, folder):
    """Train as AWS's scripts do, write and restore checkpoints, and export the model."""
    import keras
    import tensorflow as tf

    import smdist.modelparallel.tensorflow as smp

    keras.config.set_floatx("float64")
    smp.init({"pipeline_parallel_degree": 2, "microbatches": 4, "horovod": True})
    hooks = []
    model = subclass_of(smp.DistributedModel, costs="estimate")
    smp.register_post_partition_hook(lambda: hooks.append(model.plan is None))
    optimizer, loss_of = keras.optimizers.Adam(0.05), keras.losses.MeanSquaredError()
    checkpoint = tf.train.Checkpoint(net=model, optimizer=optimizer)
    manager = smp.CheckpointManager(checkpoint, directory=folder, max_to_keep=2)

    @smp.step
    def train_step(x, y):
        loss = loss_of(y, model(x, training=True))
        return smp.gradients(loss, model.trainable_variables), loss

    x, y = data()
    losses, paths = [], []
    for step in [*range(STEPS), 0]:  # the last one is undone
        part = slice(step * BATCH, (step + 1) * BATCH)
        gradients, loss = train_step(tf.constant(x[part]), tf.constant(y[part]))
        found = [each.accumulate() for each in gradients]
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
        losses.append(float(loss.reduce_mean()))
        if len(losses) <= STEPS:
            paths.append(manager.save())
    changed = model.own_values()
    restored = manager.restore(), int(optimizer.iterations.numpy())
    model.save_model(f"{folder}/saved")
    return losses[:STEPS], paths, hooks, changed, restored, model.own_values()


def alone(_rank, _size):
    """Train the same class in one process, as a keras.Model; return losses and variables."""
    import keras
    import tensorflow as tf

    keras.config.set_floatx("float64")
    model, optimizer = subclass_of(keras.Model), keras.optimizers.Adam(0.05)
    x, y = data()
    losses = []
    for step in range(STEPS):
        total, sums = 0.0, None
        for first in range(step * BATCH, (step + 1) * BATCH, BATCH // 4):
            part = slice(first, first + BATCH // 4)
            with tf.GradientTape() as tape:
                outputs = model(tf.constant(x[part]), training=True)
                loss = tf.reduce_mean(tf.square(outputs - y[part])) / 4
            found = tape.gradient(loss, [each.value for each in model.trainable_variables])
            sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
            total += float(loss)
        optimizer.apply_gradients(zip(sums, model.trainable_variables, strict=True))
        losses.append(total)
    values = {each.path: each.numpy() for each in model.variables}
    return losses, values, model(tf.constant(x[:3])).numpy()


def served(_rank, _size, folder):
    """Load the SavedModel with TensorFlow alone, and run both of its functions."""
    import tensorflow as tf

    loaded, (x, _) = tf.saved_model.load(folder), data()
    by_signature = loaded.signatures["serving_default"](input_0=tf.constant(x[:3]))
    return loaded.serve(tf.constant(x[:3])).numpy(), by_signature["output_0"].numpy()


def test_a_script_of_smp_v1(keras_world, tmp_path):
    """Losses, variables, checkpoints and SavedModel of a subclass are those of one process."""
    folder = str(tmp_path)
    answers = keras_world.run(aws_script, folder, size=2, deadline=120)
    [(losses, values, outputs)] = keras_world.run(alone, size=1, deadline=90)
    [(by_function, by_signature)] = keras_world.run(served, f"{folder}/saved", size=1, deadline=60)

    for found, paths, hooks, changed, restored, own in answers:
        np.testing.assert_allclose(found, losses, rtol=0, atol=1e-10)
        assert [f"{folder}/ckpt-{number}.keras" for number in range(1, 5)] == paths
        assert [True] == hooks
        assert (paths[-1], STEPS) == restored
        for name, value in own.items():
            np.testing.assert_allclose(value, values[name], rtol=0, atol=1e-10, err_msg=name)
        assert any((changed[name] != value).any() for name, value in own.items())
    assert set(values) == set(answers[0][-1]) | set(answers[1][-1])
    np.testing.assert_allclose(by_function, outputs, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(by_signature, by_function)
    assert ["ckpt-3.keras", "ckpt-4.keras"] == sorted(each.name for each in tmp_path.glob("ckpt*"))


def fitted_subclass(_rank, _size, folder):
    """Fit a subclass that places its layers in call(); return loss, stages and predictions."""
    import keras
    from keras import layers

    import smdist.modelparallel.tensorflow as smp

    keras.config.set_floatx("float64")
    smp.init(
        {
            "pipeline_parallel_degree": 2,
            "microbatches": 2,
            "auto_partition": False,
            "default_partition": 0,
        }
    )

    class Placed(smp.DistributedModel):
        """Each layer is called in a block of smp.partition()."""

        def __init__(self):
            super().__init__(costs="estimate")
            self.first, self.second = layers.Dense(4, name="first"), layers.Dense(4, name="second")
            self.head = layers.Dense(2, name="head")

        def call(self, x):
            with smp.partition(0):
                x = self.first(x)
            with smp.partition(1):
                return self.head(self.second(x))

    model, (x, y) = Placed(), data()
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse")
    history = model.fit(x, y, batch_size=BATCH, shuffle=False, epochs=2, verbose=0)
    before = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    model.save(f"{folder}/net.keras")
    model.fit(x, y, batch_size=BATCH, shuffle=False, epochs=1, verbose=0)
    model.load_checkpoint(f"{folder}/net.keras")
    after = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    return history.history["loss"], before, after, dict(model.plan.stage_of)


def test_fit_of_a_subclass(keras_world, tmp_path):
    """A subclass trains by fit; a checkpoint brings its values back; call() chose the stages."""
    answers = keras_world.run(fitted_subclass, str(tmp_path), size=2, deadline=120)
    losses, before, after, stages = answers[0]

    assert answers[0] == answers[1]
    assert losses[1] < losses[0]
    assert before == pytest.approx(after, abs=1e-12)
    assert {"first": 0, "second": 1, "head": 1} == stages


def exchanged(rank, _size):
    """Send objects in both ways; return what arrived, and the fields of errors."""
    import smdist.modelparallel.tensorflow as smp

    smp.init({"pipeline_parallel_degree": 2, "microbatches": 1})
    errors = []
    if rank == 0:
        smp.send({"first": [1, 2]}, 1)
        smp.send("second", 1, smp.PP_RANK)
        smp.broadcast(np.arange(3), smp.MP_GROUP)
        found = [smp.recv_from(1)]
    else:
        found = [smp.recv_from(0), smp.recv_from(0, smp.PP_RANK), smp.recv_from(0).tolist()]
        smp.send(b"back", 0)
    for call in (
        lambda: smp.send(lambda: 0, 1) if rank == 0 else smp.recv_from(0),
        lambda: smp.send(1, rank),
        lambda: smp.send(1, 5),
        lambda: smp.broadcast(1, "world"),
    ):
        with pytest.raises(smp_error()) as caught:
            call()
        errors.append((caught.value.about, caught.value.kind))
    smp.dp_barrier()
    smp.mp_barrier()
    return found, errors, smp.allgather(rank, smp.PP_GROUP), smp.get_tp_group()


def smp_error():
    """Return the class of errors of wrong requests."""
    from sagemaker_dist.errors import OptionError

    return OptionError


def test_objects(keras_world):
    """Objects arrive in the order of sending; what cannot be sent is an error on both ranks."""
    [first, second] = keras_world.run(exchanged, size=2, deadline=60)
    name = ("obj",), "not_picklable"

    assert [b"back"] == first[0]
    assert [{"first": [1, 2]}, "second", [0, 1, 2]] == second[0]
    for rank, (_, errors, every, tensor) in enumerate([first, second]):
        assert [
            name, (("dest",), "this_rank"), (("dest",), "unknown"), (("group",), "unknown"),
        ] == errors  # fmt: skip
        assert [0, 1] == every
        assert [rank] == tensor


def wrong_requests(_rank, _size, folder):
    """Return the fields of the errors of names and arguments that do not work."""
    import keras
    import tensorflow as tf

    import smdist.modelparallel.tensorflow as smp

    smp.init({"pipeline_parallel_degree": 1, "microbatches": 1})

    class Stepping(smp.DistributedModel):
        """Model with a step of its own."""

        def train_step(self, batch):
            return {}

    net = smp.DistributedModel(keras.Sequential([keras.layers.Dense(1)]))
    counted = tf.train.Checkpoint(net=net, step=tf.Variable(0))
    whole = tf.train.Checkpoint(net=net)
    found = []
    for call in (
        lambda: smp.nn,
        lambda: smp.DistributedOptimizer,
        Stepping,
        smp.DistributedModel,
        lambda: smp.CheckpointManager(counted, folder, max_to_keep=0, checkpoint_name="a/b"),
        lambda: smp.CheckpointManager(whole, folder).save(),
        lambda: net.save_model(folder),
        lambda: smp.register_post_partition_hook(3),
    ):
        with pytest.raises(smp_error()) as caught:
            call()
        found.append(caught.value.about or caught.value.kind)
    with pytest.raises(AttributeError):
        _ = smp.no_such_name
    return found


def test_wrong_requests(keras_world, tmp_path):
    """Names without a meaning for Keras and wrong arguments are refused; all faults at once."""
    [found] = keras_world.run(wrong_requests, str(tmp_path), size=1, deadline=60)

    assert [
        ("smp", "nn"),
        ("smp", "DistributedOptimizer"),
        ("train_step",),
        ("model",),
    ] == found[:4]
    assert "too_early" == found[5] == found[6]
    assert ("hook",) == found[7]
