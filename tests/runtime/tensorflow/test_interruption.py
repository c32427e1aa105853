# SPDX-License-Identifier: Apache-2.0
"""SIGTERM saves every rank of TensorFlow at one step, and the next start goes on bit for bit."""

import random

import pytest


def train(rank, size, folder, interrupted_at, steps):
    """Train `steps` steps; this rank gets SIGTERM in step interrupted_at[rank].

    Return the step at the start, the steps done, the exit code, and the weights.
    """
    import os
    import signal
    from pathlib import Path

    import numpy as np
    import tensorflow as tf

    import smdist.checkpoint
    import smdist.checkpoint.interruption as module
    import smdist.dataparallel.tensorflow as sdp

    before = signal.getsignal(signal.SIGTERM)
    module._interruption = module.Interruption()
    sdp.init()
    tf.keras.utils.set_random_seed(7)
    model = tf.keras.Sequential([tf.keras.layers.Dense(4, "relu"), tf.keras.layers.Dense(1)])
    model.build((None, 3))
    optimizer = tf.keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    values, path, done, code = [*model.variables, *optimizer.variables], Path(folder, "c.npz"), 0, 0
    if path.exists():
        with np.load(path) as saved:
            done = int(saved["done"])
            for index, value in enumerate(values):
                value.assign(saved[str(index)])
    began = done

    def save():
        if sdp.rank() == 0:
            arrays = {str(index): np.asarray(value) for index, value in enumerate(values)}
            np.savez(path, done=done, **arrays)
        sdp.barrier()

    smdist.checkpoint.on_interrupt(save)
    try:
        while done < steps:
            if done == interrupted_at.get(rank):
                os.kill(os.getpid(), signal.SIGTERM)
            batch = np.random.default_rng([done, rank]).normal(size=(4, 3)).astype("float32")
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(batch) - batch.sum(1, keepdims=True)))
            gradients = sdp.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            done += 1
            smdist.checkpoint.step()
    except SystemExit as end:
        code = end.code
    finally:
        signal.signal(signal.SIGTERM, before)
    sdp.barrier()
    sdp.shutdown()
    return began, done, code, b"".join(np.asarray(value).tobytes() for value in values)


@pytest.mark.slow
def test_training_goes_on_bit_for_bit(tf_world, tmp_path):
    steps = 12
    for name in ("whole", "two"):
        (tmp_path / name).mkdir()
    step = random.Random().randrange(1, steps - 3)

    whole = tf_world.run(train, str(tmp_path / "whole"), {}, steps, size=2)
    first = tf_world.run(train, str(tmp_path / "two"), {0: step, 1: step + 2}, steps, size=2)
    second = tf_world.run(train, str(tmp_path / "two"), {}, steps, size=2)

    assert [(0, step + 1, 143)] * 2 == [each[:3] for each in first]
    assert [(step + 1, steps, 0)] * 2 == [each[:3] for each in second]
    assert {whole[0][3]} == {each[3] for each in (*whole, *second)}, f"interrupted at {step}"
