# SPDX-License-Identifier: Apache-2.0
"""A loss of one's own that is a sum over the batch is told from means, and named."""

import pytest


def checked(_rank, _size, case):
    """Return whether a loss is checked, and the error about it."""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import ops

    from smdist.modelparallel.tensorflow.keras_fit.loss_check import is_own, sum_fault

    def squares(y, outputs):
        return ops.square(y - outputs)

    def total(y, outputs):
        return ops.sum(squares(y, outputs))

    class Total(keras.losses.Loss):
        def call(self, y, outputs):
            return total(y, outputs)

    def fixed(y, outputs):
        return ops.sum(ops.reshape(squares(y, outputs), [4, 3]))

    def across(y, outputs):
        return ops.mean(ops.matmul(outputs, ops.transpose(outputs)))

    loss = {
        "name": "mse",
        "of Keras": keras.losses.Huber(),
        "mean": lambda y, outputs: ops.mean(squares(y, outputs)),
        "of samples": lambda y, outputs: ops.mean(squares(y, outputs), axis=-1),
        "of elements": squares,
        "across": across,
        "fixed size": fixed,
        "sum": total,
        "class": Total(),
        "one of two": {"up": "mse", "down": total},
    }[case]
    inputs = keras.Input([3])
    names = ("up", "down") if isinstance(loss, dict) else ("up",)
    outputs = {name: keras.layers.Dense(3, name=name)(inputs) for name in names}
    model = keras.Model(inputs, outputs if len(names) > 1 else outputs["up"])
    model.compile("sgd", loss)
    x = tf.constant(np.random.default_rng(1).random([4, 3]), tf.float32)
    y = dict.fromkeys(names, x) if len(names) > 1 else x
    fault = sum_fault(model._compile_loss, (y, tf.ones([4])), model(x))
    kept = all(float(each.result()) == 0 for each in model._compile_loss.metrics)
    return is_own(model._compile_loss._user_loss), fault and (fault.what, fault.kind), kept


@pytest.mark.parametrize(
    ("case", "is_own", "what"),
    [
        ("name", False, None),
        ("of Keras", False, None),
        ("mean", True, None),
        ("of samples", True, None),
        ("of elements", True, None),
        ("across", True, None),
        ("fixed size", True, None),
        ("sum", True, "the loss"),
        ("class", True, "the loss"),
        ("one of two", True, "the loss 'down_loss'"),
    ],
)
def test_sums_are_told_from_means(keras_world, case, is_own, what):
    """Means, losses of samples, and losses that compare samples are not refused."""
    [(found, fault, kept)] = keras_world.run(checked, case, size=1, deadline=60)
    expected = what and (f"{what} is a sum over the samples of a batch", "unsupported")

    assert (is_own, expected, True) == (found, fault, kept)
