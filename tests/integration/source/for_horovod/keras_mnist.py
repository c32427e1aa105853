# SPDX-License-Identifier: Apache-2.0
"""Script for Horovod with the shape of its Keras MNIST example, on random pictures."""

import hashlib
import os
from pathlib import Path

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())  # rank 0's weights are sent to all
draw = np.random.default_rng(1)
labels = draw.integers(10, size=960)
images = 0.1 * draw.standard_normal((960, 28, 28, 1), dtype=np.float32)
for image, label in zip(images, labels, strict=True):
    image[2 * label : 2 * label + 4] += 1  # a band at a height of its own
dataset = tf.data.Dataset.from_tensor_slices((images, labels))
dataset = dataset.shard(hvd.size(), hvd.rank()).repeat().shuffle(960).batch(32)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(4, [3, 3], activation="relu"),
        tf.keras.layers.Conv2D(8, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Dropout(0.25),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dropout(0.5),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
scaled_lr = 0.001 * hvd.size()
optimizer = tf.keras.optimizers.Adam(scaled_lr)
optimizer = hvd.DistributedOptimizer(
    optimizer, backward_passes_per_step=1, average_aggregated_gradients=True
)
model.compile(
    loss=tf.keras.losses.SparseCategoricalCrossentropy(), optimizer=optimizer, metrics=["accuracy"]
)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=2, verbose=1),
]
if hvd.rank() == 0:
    folder = os.environ["SM_OUTPUT_DATA_DIR"]
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(f"{folder}/checkpoint-{{epoch}}.keras"))
model.fit(
    dataset,
    steps_per_epoch=30 // hvd.size(),
    callbacks=callbacks,
    epochs=5,
    verbose=1 if hvd.rank() == 0 else 0,
)

_, accuracy = model.evaluate(images, labels, verbose=0)
digest = hashlib.sha256(b"".join(value.tobytes() for value in model.get_weights()))
report = Path(os.environ["SM_MODEL_DIR"], f"{hvd.rank()}-of-{hvd.size()}.txt")
report.write_text(f"{accuracy} {digest.hexdigest()}")
