# SPDX-License-Identifier: Apache-2.0
"""Train digits with Keras on all ranks, by `fit`, in a loop, or one after the other.

The lines for smdist are marked with <--.
"""

import argparse
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from net import BATCH, build, load, loss

import smdist.dataparallel.tensorflow as sdp  # <--
import smdist.dataparallel.tensorflow.keras as hvd  # <--


def by_fit(model, pictures, labels, epochs):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.2))  # <--
    model.compile(optimizer, loss=loss(), metrics=["accuracy"])
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)  # <--
    average = hvd.callbacks.MetricAverageCallback()  # <--
    model.fit(
        pictures,
        labels,
        batch_size=BATCH // hvd.size(),  # <--
        epochs=epochs,
        shuffle=False,
        verbose=2 if hvd.rank() == 0 else 0,  # <--
        callbacks=[start, average],
    )


def in_a_loop(model, pictures, labels, epochs):
    optimizer, loss_of = keras.optimizers.SGD(0.2), loss()
    sdp.broadcast_variables(model.variables, root_rank=0)  # <--

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss_of(y, model(x, training=True))
        tape = sdp.DistributedGradientTape(tape)  # <--
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return sdp.oob_allreduce(value)  # <--

    data = tf.data.Dataset.from_tensor_slices((pictures, labels)).batch(BATCH // sdp.size())  # <--
    for epoch in range(epochs):
        values = [step(x, y) for x, y in data]
        if sdp.rank() == 0:  # <--
            print(f"epoch {epoch + 1}: loss {np.mean(values):.4f}")


WAYS = {"fit": by_fit, "loop": in_a_loop}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--ways", type=str.split, default="fit", help='such as "fit loop"')
    parser.add_argument(
        "--model_dir"
    )  # TensorFlow images of SageMaker pass this; SM_MODEL_DIR is always set
    args = parser.parse_args()
    sdp.init()  # <--
    rank, size = sdp.rank(), sdp.size()
    pictures, labels = load(os.environ["SM_CHANNEL_TRAINING"], "train")
    saved = Path(os.environ["SM_MODEL_DIR"])
    for way in args.ways:
        model = build()
        WAYS[way](model, pictures[rank::size], labels[rank::size], args.epochs)  # <--
        np.savez(saved / f"weights-{way}-{rank}.npz", *model.get_weights())
        if rank == 0:  # <--
            model.save(saved / f"model-{way}.keras")


if __name__ == "__main__":
    main()
