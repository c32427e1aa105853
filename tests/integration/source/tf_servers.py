# SPDX-License-Identifier: Apache-2.0
"""Script with a custom loop under ParameterServerStrategy, as in TensorFlow's guide."""

import json
import os
import sys
import time
from pathlib import Path

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(
    resolver, variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.zeros([4, 1]))
x = tf.eye(4)
y = tf.constant([[1.0], [2.0], [3.0], [4.0]])


@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((x @ tf.convert_to_tensor(weights) - y) ** 2)
    shards = list(weights.variables)
    for shard, gradient in zip(shards, tape.gradient(loss, shards), strict=True):
        shard.assign_sub(0.2 * gradient)
    return loss


for _ in range(40):
    coordinator.schedule(step)
coordinator.join()
where = sorted({shard.device for shard in weights.variables})
found = {"weights": tf.convert_to_tensor(weights).numpy().ravel().tolist(), "where": where}
found["task"] = [resolver.task_type, resolver.task_id]
found["workers"] = len(strategy.extended.worker_devices) or len(
    resolver.cluster_spec().job_tasks("worker")
)
Path(os.environ["SM_MODEL_DIR"], "chief.json").write_text(json.dumps(found))
if "--boom" in sys.argv:
    raise ValueError("boom")
if "--wait" in sys.argv:
    print("waits", flush=True)
    while True:
        coordinator.schedule(step)
        coordinator.join()
        time.sleep(0.05)
