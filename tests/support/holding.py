# SPDX-License-Identifier: Apache-2.0
"""What a rank of a pipeline of blocks holds in a step: for tests and benchmarks."""

from __future__ import annotations

import torch
from blocks import Held, Kept, Shape, parameters_alive, theory
from torch import Tensor

import smdist.modelparallel.torch as smp
from sagemaker_dist.contract import ModelParallel


def measure(
    rank: int, size: int, schedule: str, stages: int, microbatches: int, shape: Shape
) -> tuple[Held, Held]:
    """What this rank holds at most in a step, and what it should.

    Args:
        stages: On each rank, of as many blocks each.
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
    kept, ledger = Kept(), model._split.executors[None].ledger
    kept.ignore([*model.parameters(), batch])
    ledger.restart()
    with kept.counting():
        model.train_step(batch, Tensor.mean)
    found = Held(
        saved=kept.most,
        received=ledger.receive_bytes.peak,
        parameters=parameters_alive() - before,
    )
    assert kept.now == 0, f"{kept.now} bytes are kept beyond the step"
    blocks = [len({unit.partition(".")[0] for unit in units}) for units in model.plan.stages]
    return found, theory(shape, model.plan.actions, blocks)[rank]


def _cut(shape: Shape, batch: Tensor, num_stages: int) -> smp.Parallel:
    """The whole model is gone when this returns."""
    whole = shape.model()
    for number, block in enumerate(whole):
        smp.set_partition(block, number * num_stages // shape.num_blocks)
    return smp.parallelize(whole, example=batch, costs="estimate")
