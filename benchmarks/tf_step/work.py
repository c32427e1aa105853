# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: a TensorFlow model that sleeps in place of a GPU's computation.

smdist reduces with the functions of DistributedGradientTape; MultiWorkerMirroredStrategy
with its ring, as its replica context's all_reduce() does for an optimizer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import smdist.dataparallel.tensorflow as sdp
from benchmarks.tf_step.size import BACKWARD, FORWARD, FUSION_BYTES, GRADIENT_BYTES, LAYERS

_COUNT = GRADIENT_BYTES // 4 // LAYERS
Step = Callable[[], list[Any]]

_now: dict[str, Step] = {}  # measured functions, by name
_strategy: list[Any] = []


def join(peer: str) -> int:
    """Connect to the other ranks and return this rank."""
    tf.config.threading.set_inter_op_parallelism_threads(4)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    if peer == "smdist-tf":
        sdp.init()
    else:
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        _strategy.append(tf.distribute.MultiWorkerMirroredStrategy(communication_options=options))
    return int(os.environ["RANK"])


def prepare(peer: str) -> None:
    """Create the measured functions, and check that gradients are averaged over all ranks."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    numbers = np.random.default_rng(0)  # equal on all ranks
    weights = [tf.Variable(numbers.random(_COUNT, np.float32)) for _ in range(LAYERS)]
    scale, one = rank + 1.0, tf.Variable(1.0)  # for a constant, the sleep would run only once
    reduced = _ours if peer == "smdist-tf" else _theirs
    _now["all-reduce"] = reduced(lambda: (list(map(tf.identity, weights)), weights))
    _now["step"] = reduced(lambda: _gradients(one, weights, scale))
    _now["compute"] = tf.function(lambda: _gradients(one, weights, scale)[0])
    _now["meeting"] = reduced(lambda: ([tf.zeros([1])], [None]))
    mean = (size + 1) / 2
    for _ in range(2):
        for found, weight in zip(_now["step"](), weights, strict=True):
            np.testing.assert_allclose(found.numpy(), weight.numpy() * mean, rtol=1e-5)


def _ours(make: Callable[[], tuple[list[Any], list[Any]]]) -> Step:
    from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions
    from smdist.dataparallel.tensorflow.gradients import reduce_gradients

    reduction = ReduceOptions(fusion_bytes=FUSION_BYTES)
    step: Step = tf.function(lambda: reduce_gradients(*make(), reduction))
    return step


def _theirs(make: Callable[[], tuple[list[Any], list[Any]]]) -> Step:
    strategy = _strategy[0]

    def replica() -> Any:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.MEAN, make()[0])

    return tf.function(lambda: strategy.run(replica))


def _gradients(one: Any, weights: list[Any], scale: float) -> tuple[list[Any], list[Any]]:
    with tf.GradientTape() as tape:
        x = tf.convert_to_tensor(one)
        for weight in weights:
            x = _layer(x, weight, scale)
        # the backward pass starts from x, which is 1, so it waits for the forward pass
        loss = x * x / 2
    return tape.gradient(loss, weights), weights


def _layer(x: Any, weight: Any, scale: float) -> Any:
    """Return x, and add scale/2 * |weight|^2 to the loss as far as gradients are concerned."""

    @tf.custom_gradient
    def layer(x: Any, weight: Any) -> Any:
        def gradient(upstream: Any) -> tuple[Any, Any]:
            back = _asleep(upstream, BACKWARD / LAYERS)  # still 1
            return back, weight * (back * scale)

        return _asleep(x, FORWARD / LAYERS), gradient

    return layer(x, tf.convert_to_tensor(weight))


def _asleep(x: Any, seconds: float) -> Any:
    """Return x after a sleep, which holds neither the GIL nor a processor."""

    def sleep(value: Any) -> Any:
        time.sleep(seconds)
        return value

    found = tf.numpy_function(sleep, [x], tf.float32, stateful=False)
    found.set_shape(x.shape)
    return found


def measure(iterations: int, name: str) -> tuple[float, float]:
    """Return the wall and processor seconds of this many iterations, one after another."""
    _now["meeting"]()  # waits for ranks that are late
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        _now[name]()
    return time.perf_counter() - wall, time.process_time() - cpu
