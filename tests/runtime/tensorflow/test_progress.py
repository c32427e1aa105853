# SPDX-License-Identifier: Apache-2.0
"""The line of progress of a training with TensorFlow, in fit() and in a loop."""

import contextlib
import io
import re

import numpy as np
import pytest

from sagemaker_dist.contract.metrics import STEP
from sagemaker_dist.errors import OptionError

EPOCHS, BATCHES = 2, 4


@contextlib.contextmanager
def _lines():
    """What is printed meanwhile that is a line of progress, as {name: number}."""
    from smdist.dataparallel.tensorflow import progress

    lines = []
    with contextlib.redirect_stdout(io.StringIO()) as said:
        yield lines
        progress.finish()
    for line in said.getvalue().splitlines():
        if line.startswith("smdist: "):
            lines.append({name: float(value) for name, value in re.findall(r"(\S+)=(\S+)", line)})


def _fit(rank, size, verbose):
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    hvd.init()
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    x = np.ones([BATCHES * 2, 3], "float32")
    with _lines() as lines:
        model.fit(x, x[:, :1], batch_size=2, epochs=EPOCHS, verbose=verbose, callbacks=callbacks)
    return lines


@pytest.mark.parametrize("verbose", [0, 2])
def test_fit_says_how_it_went_on(tf_world, verbose):
    """Rank 0 alone prints; the loss is on the line where Keras prints none."""
    (line,), other = tf_world.run(_fit, verbose, size=2)

    assert [] == other
    assert EPOCHS * BATCHES == line[STEP]
    assert 0 < line["steps_per_second"]
    assert 0 < line["all_reduce_ms"] <= 1e3 / line["steps_per_second"] * 1.0001
    assert (verbose == 0) == ("loss" in line)


def _loop(rank, size):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    refused = []
    for wrong in ({"loss": tf.zeros([2])}, {"loss": "low"}, {"a b": 1}, {"step": 1.5}):
        with pytest.raises(OptionError) as caught:
            sdp.report(**wrong)
        refused.append((*caught.value.about, caught.value.kind))
    with pytest.raises(OptionError) as caught:
        tf.function(lambda: sdp.report(loss=1.0), autograph=False)()
    assert (("report",), "traced") == (caught.value.about, caught.value.kind)
    with _lines() as lines:
        for step in range(3):
            sdp.report(loss=sdp.allreduce(tf.constant(float(step))), step=step, wrong=tf.zeros([]))
    return lines, refused


def test_a_loop_reports_its_loss(tf_world):
    (lines, refused), (none, others) = tf_world.run(_loop, size=2)

    tensor, text, (name, _), step = refused
    assert ("loss", "not_number") == tensor == text
    assert ("a b", ("step", "not_integer")) == (name, step)
    assert (refused, []) == (others, none)
    [line] = lines
    assert (2, 2.0, 0.0) == (line[STEP], line["loss"], line["wrong"])


def _two_models(rank, size):
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    hvd.init()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    x, weights = np.ones([2, 3], "float32"), []
    for number in range(2):
        keras.utils.set_random_seed(10 * number + rank)
        model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
        model.fit(x, x[:, :1], verbose=0, callbacks=callbacks)
        weights += [value.tobytes() for value in model.get_weights()]
    return weights


def test_one_callback_serves_several_models(tf_world):
    one, other = tf_world.run(_two_models, size=2)

    assert one == other
