# SPDX-License-Identifier: Apache-2.0
"""What a script has left out is one line of rank 0's, where it trains models that differ."""

import contextlib
import io

import numpy as np
import pytest


@contextlib.contextmanager
def _said():
    """Collect this process's hints, with all recorded facts cleared.

    A process also logs once that the start of its job is not protected: that is no hint.
    """
    from smdist.dataparallel.rendezvous.protection import UNPROTECTED
    from smdist.dataparallel.tensorflow import setup_hints

    setup_hints._facts.clear()
    setup_hints._printed.clear()
    lines = []
    with contextlib.redirect_stderr(io.StringIO()) as text:
        yield lines
    lines += text.getvalue().replace(UNPROTECTED, "").splitlines()


def _fit(rank, size, is_wrapped, is_broadcast, is_averaged):
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    with _said() as lines:
        hvd.init()
        keras.utils.set_random_seed(rank)
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        plain = keras.optimizers.SGD(0.1)
        model.compile(hvd.DistributedOptimizer(plain) if is_wrapped else plain, loss="mse")
        average = [hvd.callbacks.MetricAverageCallback()] if is_averaged else []
        start = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if is_broadcast else []
        x = np.random.default_rng(rank).normal(size=(8, 3))
        model.fit(x, x[:, :1], batch_size=2, epochs=2, verbose=0, callbacks=start + average)
        hvd.shutdown()
    return lines


@pytest.mark.parametrize(
    ("is_wrapped", "is_broadcast", "is_averaged", "words"),
    [
        (False, True, False, ["no gradients are averaged: SGD applies only the gradients"]),
        (True, False, True, ["weights differ between ranks after an epoch"]),
        (True, False, False, ["weights were never broadcast. If ranks began"]),
        (False, False, False, ["rank 0 of 2 ranks has called no collective. If this script"]),
        (True, True, True, []),
    ],
)
def test_fit_without_something(tf_world, is_wrapped, is_broadcast, is_averaged, words):
    """Rank 0 prints it once in two epochs; a complete script prints nothing."""
    lines, others = tf_world.run(_fit, is_wrapped, is_broadcast, is_averaged, size=2)

    assert [] == others
    assert len(words) == len(lines)
    assert all(line.startswith(f"smdist: {said}") for line, said in zip(lines, words, strict=True))


def _loop(rank, size, kind):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    with _said() as lines:
        sdp.init()
        weight = tf.Variable([1.0, 2.0])
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build([weight])

        @tf.function
        def step(is_first):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight**2)
            tape = sdp.DistributedGradientTape(tape) if kind == "tape" else tape
            gradient = tape.gradient(loss, weight)
            if kind == "by hand":
                gradient = sdp.allreduce(gradient, param_index=0, num_params=1)
            optimizer.apply_gradients([(gradient, weight)])
            if is_first:
                sdp.broadcast_variables([weight, *optimizer.variables], root_rank=0)
            return sdp.oob_allreduce(loss)

        for batch in range(3):
            step(batch == 0)
        sdp.shutdown()
    return lines


@pytest.mark.parametrize(("kind", "count"), [("none", 1), ("tape", 0), ("by hand", 0)])
def test_a_loop_that_averages_no_gradients(tf_world, kind, count):
    """Broadcasts after the first step are in time, and gradients may be averaged by hand."""
    lines, others = tf_world.run(_loop, kind, size=2)

    assert [] == others
    assert count == len(lines)
    assert all(line.startswith("smdist: no gradients were averaged") for line in lines)


def _alone(rank, size):
    import smdist.dataparallel.tensorflow as sdp

    numbers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    hosts = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": f"algo-{rank + 1}"}
    with _said() as lines, pytest.MonkeyPatch.context() as patch:
        for name in numbers:
            patch.delenv(name)
        for name, value in hosts.items():
            patch.setenv(name, value)
        sdp.init()
        sdp.shutdown()
    return lines


def test_hosts_of_a_job_without_distribution(tf_world):
    """The first of them prints that each trains a separate model."""
    (line,), others = tf_world.run(_alone, size=2)

    assert [] == others
    assert line.startswith("smdist: the script runs as one plain process on each of the 2 hosts")


def _raised(rank, size):
    import smdist.dataparallel.tensorflow as sdp

    with _said() as lines, contextlib.suppress(ValueError):
        sdp.init()
        try:
            raise ValueError("of the script")
        finally:
            sdp.shutdown()
    return lines


def test_after_an_error_nothing_is_said_of_what_is_missing(tf_world):
    assert [[], []] == tf_world.run(_raised, size=2)
