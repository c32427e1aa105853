# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: steps of the GPT with SGD, on one core for each rank."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import smdist.modelparallel.tensorflow as smp
from benchmarks.keras_pipeline.model import MICROBATCHES, batch, gpt, loss_of, place_of
from sagemaker_dist import ModelParallel
from smdist.dataparallel.tensorflow.broadcast_objects import allgather_object
from smdist.modelparallel.tensorflow.keras_fit.step_agreement import TRAIN
from smdist.modelparallel.tensorflow.keras_stages.pipeline_batch import PipelineBatch

RATE = 0.01
LOSSES = 3  # number of steps whose losses are compared

_now: dict[str, Callable[[], float]] = {}  # measured functions, by name


def pin() -> None:
    """Bind all threads of this rank to the core of its number."""
    core = int(os.environ["LOCAL_RANK"])
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def one_process() -> list[float]:
    """Prepare the whole model in one process, one microbatch after another; return losses."""
    model, optimizer = gpt(), keras.optimizers.SGD(RATE)
    x, y = (tf.constant(each) for each in batch())

    @tf.function
    def part(row: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(row, training=True)) / MICROBATCHES
        found = tape.gradient(loss, [each.value for each in model.trainable_variables])
        return loss, [tf.convert_to_tensor(each) for each in found]

    @tf.function
    def update(gradients: Any) -> None:
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def step() -> float:
        total, sums = 0.0, None
        for row, labels in zip(tf.split(x, MICROBATCHES), tf.split(y, MICROBATCHES), strict=True):
            loss, found = part(row, labels)
            total += float(loss)
            sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
        update(sums)
        return total

    return _ready("one", step)


def in_stages(name: str, pipeline: str, first: int | None = None) -> tuple[str, list[float]]:
    """Prepare a pipeline of two ranks.

    Args:
        name: Name of the contender.
        pipeline: Schedule.
        first: Number of blocks on the first stage; None lets the planner choose.

    Returns:
        First and last layer of each stage, and losses.
    """
    smp.end()
    by_hand: dict[str, Any] = {"auto_partition": False, "default_partition": 0}
    smp.init(
        ModelParallel(
            pipeline_parallel_degree=2,
            microbatches=MICROBATCHES,
            pipeline=pipeline,
            **({} if first is None else by_hand),
        )
    )
    whole = gpt()
    if first is not None:
        for layer in whole.layers:
            smp.set_partition(layer, int(place_of(layer) > first))
    model = smp.DistributedModel(whole)
    model.compile(optimizer=keras.optimizers.SGD(RATE), loss=loss_of)
    x, y = (tf.constant(each) for each in batch())

    def step() -> float:
        model.reset_metrics()
        return float(model.train_on_batch(x, y))

    losses = _ready(name, step)
    assert model.plan is not None
    return ", ".join(f"{units[0]} to {units[-1]}" for units in model.plan.stages), losses


def small_steps(whole: str, bare: str) -> None:
    """Prepare steps of a small model on two ranks, in which exchanges between ranks weigh most.

    Args:
        whole: Name for the steps of fit().
        bare: Name for the same steps without agreement of the ranks and without logs.
    """
    smp.end()
    smp.init(ModelParallel(pipeline_parallel_degree=2, microbatches=2, pipeline="1f1b"))
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(64, activation="relu") for _ in range(3)]
    model = smp.DistributedModel(keras.Sequential([keras.Input([64]), *layers]), costs="estimate")
    model.compile(optimizer=keras.optimizers.SGD(RATE), loss="mse")
    x = tf.random.stateless_normal([MICROBATCHES, 64], [0, 1])
    model.train_on_batch(x, x)
    trainer, agreement = model._hidden["trainer"], model._hidden["agreement"]
    batch_of_x = PipelineBatch.of(x, x)

    def with_exchanges() -> float:
        agreement.agreed(TRAIN, batch_of_x)
        trainer.train(batch_of_x)
        return float(trainer.logs(training=True)["loss"])

    def without() -> float:
        trainer.train(batch_of_x)
        trainer._losses.clear()
        return 0.0

    _ready(whole, with_exchanges)
    _ready(bare, without)


def _ready(name: str, step: Callable[[], float]) -> list[float]:
    losses = [step() for _ in range(LOSSES)]
    _now[name] = step
    pin()
    return losses


def measure(iterations: int, name: str) -> tuple[float, float]:
    """Return the wall and processor seconds of this many steps."""
    allgather_object(None)  # waits for ranks that are late
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        _now[name]()
    return time.perf_counter() - wall, time.process_time() - cpu
