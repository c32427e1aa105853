# SPDX-License-Identifier: Apache-2.0
"""Split Keras models train as one process with the same microbatches does."""

import numpy as np
import pytest
from keras_comparison import BATCH, MICROBATCHES, compare


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
@pytest.mark.parametrize(
    "pipeline", ["simple", "interleaved", "1f1b", "interleaved_1f1b", "looped_bfs"]
)
def test_schedules(keras_world, pipeline):
    """Every schedule computes the same."""
    stages = 2 if pipeline in ("interleaved_1f1b", "looped_bfs") else 1
    compare(
        keras_world, "residual", size=2, config={"pipeline": pipeline, "virtual_stages": stages}
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shared", "tied"])
def test_two_replicas(keras_world, name):
    """Two replicas of two stages average their gradients."""
    compare(keras_world, name, size=4, replicas=2)
