# SPDX-License-Identifier: Apache-2.0
"""Script with Keras `fit` over all ranks on the digits; every rank saves its weights."""

import os
from pathlib import Path

import keras
import numpy as np

import smdist.dataparallel.tensorflow.keras as sdp

BATCH = 32

sdp.init()
keras.utils.set_random_seed(sdp.rank())  # unlike on every rank, until rank 0's are sent
data = np.load(Path(os.environ["SM_CHANNEL_TRAINING"], "train.npz"))
pictures, labels = (data[name][sdp.rank() :: sdp.size()] for name in ("pictures", "labels"))
num_batches = len(data["labels"]) // sdp.size() // BATCH  # the same on every rank
model = keras.Sequential(
    [keras.layers.Flatten(), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
)
model.compile(
    sdp.DistributedOptimizer(keras.optimizers.SGD(0.2)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    pictures[: BATCH * num_batches],
    labels[: BATCH * num_batches],
    batch_size=BATCH,
    epochs=20,
    verbose=0,
    callbacks=[sdp.callbacks.BroadcastGlobalVariablesCallback(0)],
)
test = np.load(Path(os.environ["SM_CHANNEL_TRAINING"], "test.npz"))
_, accuracy = model.evaluate(test["pictures"], test["labels"], verbose=0)
weights = {f"weight{i}": value for i, value in enumerate(model.get_weights())}
path = Path(os.environ["SM_MODEL_DIR"], f"rank{sdp.rank()}-of-{sdp.size()}.npz")
np.savez(path, accuracy=accuracy, **weights)
sdp.shutdown()
