# SPDX-License-Identifier: Apache-2.0
"""Measurement of the bytes that a rank of a pipeline of blocks holds, for tests and benchmarks."""

from __future__ import annotations

import torch
from blocks import Held, Kept, Shape, parameters_alive, theory
from torch import Tensor

import smdist.modelparallel.torch as smp
from sagemaker_dist.contract import ModelParallel


def measure(
    rank: int, size: int, schedule: str, stages: int, microbatches: int, shape: Shape
) -> tuple[Held, Held]:
    """Return the maximum bytes that this rank holds in a step, measured and in theory.

    Args:
        stages: Number of stages on each rank, with as many blocks each.
    """
    torch.set_num_threads(1)
    options = ModelParallel(
        pipeline_parallel_degree=size,
        microbatches=microbatches,
        pipeline=schedule,
        virtual_stages=stages,
        auto_partition=False,
    )
    smp.init(options)
    before, batch = parameters_alive(), shape.batch(microbatches)
    model = _cut(shape, batch, size * stages)
    model.train_step(batch, Tensor.mean)
    kept, memory = Kept(), model._split.executors[None].memory
    kept.ignore([*model.parameters(), batch])
    memory.restart()
    with kept.counting():
        model.train_step(batch, Tensor.mean)
    found = Held(
        saved=kept.most,
        received=memory.receive_bytes.peak,
        parameters=parameters_alive() - before,
    )
    assert kept.now == 0, f"{kept.now} bytes are kept beyond the step"
    blocks = [len({unit.partition(".")[0] for unit in units}) for units in model.plan.stages]
    return found, theory(shape, model.plan.actions, blocks)[rank]


def _cut(shape: Shape, batch: Tensor, num_stages: int) -> smp.Parallel:
    """Cut the model; the whole model is released when this returns."""
    whole = shape.model()
    for number, block in enumerate(whole):
        smp.set_partition(block, number * num_stages // shape.num_blocks)
    return smp.parallelize(whole, example=batch, costs="estimate")
