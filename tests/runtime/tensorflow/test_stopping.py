# SPDX-License-Identifier: Apache-2.0
"""SIGTERM ends fit() after the same batch on all ranks."""

import os
import signal

import numpy as np
import pytest

from sagemaker_dist.errors import OptionError


def _stopped(rank, size, every, at):
    """Batches of each fit(), and whether it was stopped: one with the signal, one without."""
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    class Kill(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.batches = 0

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1
            if rank == 1 and self.batches == at:
                os.kill(os.getpid(), signal.SIGTERM)

    hvd.init()
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(True))
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    kill, stop = Kill(), hvd.callbacks.StopCallback(every)
    x = np.ones([8, 3], "float32")
    found = []
    for callbacks in ([kill, stop], [stop]):
        model.fit(x, x[:, :1], batch_size=1, epochs=3, verbose=0, callbacks=callbacks)
        found.append((kill.batches, stop.is_stopped))
    os.kill(os.getpid(), signal.SIGTERM)  # whoever heard it before fit() does so again
    signal.signal(signal.SIGTERM, before)
    return found, heard


@pytest.mark.parametrize(("every", "at", "batches"), [(3, 4, 6), (100, 4, 8), (1, 17, 17)])
def test_all_ranks_stop_after_the_same_batch(tf_world, every, at, batches):
    """Also a rank that received no signal; a later fit() runs to its end."""
    expected = ([(batches, True), (batches, False)], [True])

    assert [expected] * 2 == tf_world.run(_stopped, every, at, size=2)


@pytest.mark.parametrize("every", [0, -1, 1.5, "often"])
def test_every_batches_is_a_positive_number(every):
    from smdist.dataparallel.tensorflow.keras.callbacks import StopCallback

    with pytest.raises(OptionError) as caught:
        StopCallback(every)

    assert ("every_batches",) == caught.value.about
