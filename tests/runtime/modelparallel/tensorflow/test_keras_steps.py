# SPDX-License-Identifier: Apache-2.0
"""Functions with @smp.step train as fit does, in the names of SMP v1."""

import numpy as np

BATCH, STEPS = 8, 3


def own_loop(_rank, _size):
    """Train with a step function; return losses, outputs and this rank's variables."""
    import keras
    from keras_models import MODELS, made, part_of

    import smdist.modelparallel.tensorflow as smp

    keras.config.set_floatx("float64")
    smp.init({"pipeline_parallel_degree": 2, "microbatches": 4})
    model = smp.DistributedModel(made("residual"), costs="estimate")
    optimizer, loss_of = keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError()

    @smp.step
    def train_step(x, y):
        outputs = model(x, training=True)
        loss = loss_of(y, outputs)
        return smp.gradients(loss, model.trainable_variables), loss, outputs

    x, y = MODELS["residual"][1](BATCH * STEPS)
    losses, shapes = [], []
    for step in range(STEPS):
        gradients, loss, outputs = train_step(*part_of((x, y), step * BATCH, BATCH))
        found = [each.accumulate() for each in gradients]
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
        losses.append(float(loss.reduce_mean()))
        shapes.append(tuple(outputs.merge().shape))
    return losses, shapes, model.own_values()


def alone(_rank, _size):
    """Train in one process with the same microbatches."""
    import keras
    from keras_models import trained_alone

    keras.config.set_floatx("float64")
    return trained_alone(
        "residual", keras.optimizers.SGD(0.1), steps=STEPS, batch_size=BATCH, microbatches=4
    )


def test_own_loop(keras_world):
    """Weights are those of one process, and every rank has loss and outputs."""
    answers = keras_world.run(own_loop, size=2, deadline=90)
    [(_, values)] = keras_world.run(alone, size=1, deadline=90)
    for losses, shapes, own in answers:
        assert answers[0][0] == losses
        assert [(BATCH, 2)] * STEPS == shapes
        for path, value in own.items():
            np.testing.assert_allclose(value, values[path], rtol=0, atol=1e-10, err_msg=path)

    assert set(values) == set(answers[0][2]) | set(answers[1][2])
