# SPDX-License-Identifier: Apache-2.0
"""Split Keras models train as one process with the same microbatches does."""

import numpy as np
import pytest

BATCH, MICROBATCHES, STEPS = 8, 4, 3
TOLERANCE = 1e-10


def fitted(_rank, _size, name, config, optimizer, replicas, steps, batch):
    """Train a model by fit() in a pipeline; return losses and the variables of this rank."""
    import keras
    from keras_models import MODELS, loss_of, made, part_of

    import smdist.modelparallel.tensorflow as smp

    keras.config.set_floatx("float64")
    smp.init({"microbatches": MICROBATCHES, **config})
    model = smp.DistributedModel(made(name), costs="estimate")
    model.compile(optimizer=keras.optimizers.deserialize(optimizer), loss=loss_of(name))
    data = MODELS[name][1](batch * steps * replicas)
    losses = []
    for step in range(steps):
        start = (step * replicas + smp.dp_rank()) * batch
        x, y = part_of(data, start, batch)
        losses.append(model.train_on_batch(x, y, return_dict=True)["loss"])
    return losses, model.own_values(), model.plan.stages


def resident(_rank, _size):
    """Train a model that was created without memory; return what this rank holds of it."""
    import keras
    from keras_models import MODELS, loss_of, made

    import smdist.modelparallel.tensorflow as smp

    keras.config.set_floatx("float64")
    smp.init({"pipeline_parallel_degree": 2, "microbatches": MICROBATCHES})
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    with smp.delay_param_initialization():
        inner = MODELS["residual"][0]()
    before = sum(each._value is not None for each in inner.variables)
    model = smp.DistributedModel(inner)
    model.compile(optimizer=keras.optimizers.Adam(0.0), loss=loss_of("residual"))
    saver = [keras.callbacks.EarlyStopping("loss", patience=5)]
    x, y = MODELS["residual"][1](BATCH)
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=saver, class_weight=None)
    held = [each for each in inner.variables if not hasattr(each._value, "holder")]
    slots = [each for each in model.optimizer.variables if len(each.shape)]
    own = {each.path: each.numpy() for each in model.trainable_variables}
    whole = made("residual")
    same = [np.array_equal(own.get(v.path, v), v) for v in whole.trainable_variables]
    first = [each.path for each in whole.variables]
    return before, [each.path for each in held], len(slots), len(own), first, all(same)


def test_a_rank_holds_its_own_stages_alone(keras_world):
    """Variables and optimizer state of other stages take no memory, not even at the start.

    First values are those of a model that is made at once.
    """
    answers = keras_world.run(resident, size=2, deadline=90)
    paths = [path for _, held, *_ in answers for path in held]
    for before, _, slots, trained, first, is_same in answers:
        assert 0 == before
        assert is_same
        assert 2 * trained == slots
        assert set(first) == set(paths)

    assert len(paths) == len(set(paths))


def alone(_rank, _size, name, optimizer, replicas, steps, batch):
    """Train a model in one process with the same microbatches."""
    import keras
    from keras_models import trained_alone

    keras.config.set_floatx("float64")
    return trained_alone(
        name, keras.optimizers.deserialize(optimizer), steps=steps, batch_size=batch,
        microbatches=MICROBATCHES, replicas=replicas,
    )  # fmt: skip


def compare(
    world,
    name,
    *,
    size,
    config=None,
    replicas=1,
    optimizer=None,
    deadline=150,
    steps=STEPS,
    batch=BATCH,
):
    """Compare a run of `size` ranks with a run in this process."""
    optimizer = optimizer or {"class_name": "SGD", "config": {"learning_rate": 0.1}}
    config = {"pipeline_parallel_degree": size // replicas, **(config or {})}
    rest = (optimizer, replicas, steps, batch)
    answers = world.run(fitted, name, config, *rest, size=size, deadline=deadline)
    [(expected, values)] = world.run(alone, name, *rest, size=1, deadline=deadline)
    seen = set()
    for losses, own, stages in answers:
        assert size // replicas <= len(stages)
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-6)
        for path, value in own.items():
            seen.add(path)
            limit = TOLERANCE * max(1.0, float(np.max(np.abs(values[path]))))
            np.testing.assert_allclose(value, values[path], rtol=0, atol=limit, err_msg=path)

    assert seen == set(values)


@pytest.mark.parametrize("name", ["residual", "masks", "tied"])
def test_two_stages(keras_world, name):
    """Weights after three steps are those of one process, to 1e-10."""
    compare(keras_world, name, size=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shared", "inputs", "branching"])
@pytest.mark.parametrize("size", [2, 3])
def test_further_models(keras_world, name, size):
    """The same holds for shared layers, several inputs and outputs, and control flow."""
    compare(keras_world, name, size=size)


def test_global_norm(keras_world):
    """A clipping optimizer sees the norm of the whole model, also with tied weights."""
    compare(
        keras_world, "tied", size=2,
        optimizer={"class_name": "Adam", "config": {"global_clipnorm": 0.05, "epsilon": 1e-3}},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["simple", "interleaved", "1f1b", "looped_bfs"])
def test_schedules(keras_world, pipeline):
    """Every schedule computes the same."""
    stages = 2 if pipeline == "looped_bfs" else 1
    compare(
        keras_world, "residual", size=2, config={"pipeline": pipeline, "virtual_stages": stages}
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shared", "tied"])
def test_two_replicas(keras_world, name):
    """Two replicas of two stages average their gradients."""
    compare(keras_world, name, size=4, replicas=2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    "name",
    [
        *("ResNet50", "MobileNetV3Small", "EfficientNetB0", "DenseNet121", "ConvNeXtTiny"),
        *("unet", "gpt", "translation"),
    ],
)
def test_matrix(keras_world, name, size):
    """Models of keras.applications and others on two, three and four stages.

    One step of microbatches of 8 samples: further steps, or normalization over fewer samples, would
    show how rounding errors grow.
    """
    compare(keras_world, name, size=size, deadline=800, steps=1, batch=32)
