# SPDX-License-Identifier: Apache-2.0
"""Script that trains a small model with TensorFlow, and goes on from its checkpoint."""

import argparse
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

import smdist.checkpoint
import smdist.dataparallel.tensorflow as sdp

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--save-every", type=int)
args, _ = parser.parse_known_args()  # the SDK adds --model_dir
sdp.init()
tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(1e-3)
model.build((None, 4))
optimizer.build(model.trainable_variables)
values = [*model.variables, *optimizer.variables]
folder, done = Path(os.environ["SM_CHECKPOINT_DIR"]), 0


def save(target=folder / "checkpoint.npz"):
    if sdp.rank() == 0:
        arrays = {str(index): np.asarray(value) for index, value in enumerate(values)}
        unfinished = target.with_name("new.npz")
        np.savez(unfinished, done=done, **arrays)
        unfinished.replace(target)
    sdp.barrier()


@tf.function
def train_step(inputs):
    with tf.GradientTape() as tape:
        wrong = model(inputs) - tf.reduce_sum(inputs, 1, keepdims=True)
        loss = tf.reduce_mean(wrong * wrong)
    gradients = sdp.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


if (folder / "checkpoint.npz").exists():
    with np.load(folder / "checkpoint.npz") as saved:
        done = int(saved["done"])
        for index, value in enumerate(values):
            value.assign(saved[str(index)])
    print(f"resumes after step {done}", flush=True)
else:
    sdp.broadcast_variables(values, root_rank=0)
smdist.checkpoint.on_interrupt(save)
while done < args.steps:
    batch = np.random.default_rng([done, sdp.rank()]).normal(size=(8, 4))
    train_step(tf.constant(batch, tf.float32))
    done += 1
    if done % args.save_every == 0:
        save()
    smdist.checkpoint.step()
save(Path(os.environ["SM_MODEL_DIR"], "model.npz"))
