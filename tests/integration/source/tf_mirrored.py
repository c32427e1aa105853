# SPDX-License-Identifier: Apache-2.0
"""A custom loop under MultiWorkerMirroredStrategy, or MirroredStrategy on one host.

Fits y = 3 x - 1 by gradient descent; each replica takes its share of the points.
"""

import json
import os
from pathlib import Path

import tensorflow as tf

if "TF_CONFIG" in os.environ:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
else:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight, bias = tf.Variable(0.0), tf.Variable(0.0)
x = tf.linspace(-1.0, 1.0, 8)
points = tf.data.Dataset.from_tensor_slices((x, 3 * x - 1)).batch(8).repeat()


def on_replica(batch):
    x, y = batch
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((weight * x + bias - y) ** 2) / 8
    gradients = tape.gradient(loss, [weight, bias])
    replica = tf.distribute.get_replica_context()
    for variable, gradient in zip((weight, bias), gradients, strict=True):
        variable.assign_sub(0.5 * replica.all_reduce("sum", gradient))
    return loss


@tf.function
def step(iterator):
    return strategy.run(on_replica, args=(next(iterator),))


iterator = iter(strategy.experimental_distribute_dataset(points))
for _ in range(60):
    step(iterator)
found = {"weight": float(weight.numpy()), "bias": float(bias.numpy())}
found["replicas"] = strategy.num_replicas_in_sync
name = f"{os.environ.get('RANK', 'only')}.json"
Path(os.environ["SM_MODEL_DIR"], name).write_text(json.dumps(found))
