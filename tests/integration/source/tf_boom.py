# SPDX-License-Identifier: Apache-2.0
"""Script in which rank 1 cannot read a record while all ranks fit."""

import keras
import numpy as np
import tensorflow as tf

import smdist.dataparallel.tensorflow.keras as hvd

hvd.init()


def records():
    for number in range(64):
        if hvd.rank() == 1 and number == 40:
            raise ValueError("bad record 17 in shard 3")
        yield np.ones(4, np.float32), np.ones(1, np.float32)


kinds = (tf.TensorSpec(4, tf.float32), tf.TensorSpec(1, tf.float32))
data = tf.data.Dataset.from_generator(records, output_signature=kinds).batch(4)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
model.fit(data, epochs=1, verbose=0)
