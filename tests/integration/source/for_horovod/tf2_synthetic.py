# SPDX-License-Identifier: Apache-2.0
"""Script for Horovod with the shape of its TensorFlow 2 synthetic benchmark."""

import argparse
import hashlib
import os
import timeit
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--num-warmup-batches", type=int, default=1)
parser.add_argument("--num-batches-per-iter", type=int, default=2)
parser.add_argument("--num-iters", type=int, default=3)
args, _ = parser.parse_known_args()

hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())  # rank 0's weights are sent to all
model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(8, 3, activation="relu"),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(1000, activation="softmax"),
    ]
)
opt = tf.keras.optimizers.SGD(0.01)
data = tf.random.uniform([args.batch_size, 32, 32, 3])
target = tf.random.uniform([args.batch_size, 1], minval=0, maxval=999, dtype=tf.int64)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none


@tf.function
def benchmark_step(first_batch):
    with tf.GradientTape() as tape:
        probs = model(data, training=True)
        loss = tf.reduce_mean(tf.losses.sparse_categorical_crossentropy(target, probs))
    tape = hvd.DistributedGradientTape(tape, compression=compression)
    gradients = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)


def log(line):
    if hvd.rank() == 0:
        print(line, flush=True)


benchmark_step(first_batch=True)
timeit.timeit(lambda: benchmark_step(first_batch=False), number=args.num_warmup_batches)
speeds = []
for number in range(args.num_iters):
    seconds = timeit.timeit(
        lambda: benchmark_step(first_batch=False), number=args.num_batches_per_iter
    )
    speeds.append(args.batch_size * args.num_batches_per_iter / seconds)
    log(f"iteration {number}: {speeds[-1]:.1f} images a second")
log(f"total: {hvd.size() * np.mean(speeds):.1f} images a second on {hvd.size()} ranks")

digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.trainable_variables))
report = Path(os.environ["SM_MODEL_DIR"], f"{hvd.rank()}-of-{hvd.size()}.txt")
report.write_text(f"{np.mean(speeds)} {digest.hexdigest()}")
