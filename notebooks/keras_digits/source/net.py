# SPDX-License-Identifier: Apache-2.0
"""Model and data of the Keras example; nothing here refers to ranks."""

from pathlib import Path

import keras
import numpy as np

BATCH = 128  # samples per step, over all ranks


def build():
    """Return the model, with the same weights every time."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((1, 8, 8)),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def load(folder, name):
    """Return pictures and labels of train.npz or test.npz; training data as whole batches only."""
    with np.load(Path(folder, f"{name}.npz")) as file:
        pictures, labels = file["pictures"], file["labels"]
    count = len(labels) // BATCH * BATCH if name == "train" else len(labels)
    return pictures[:count], labels[:count]


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
