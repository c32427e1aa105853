# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: forward and backward steps of a GPT whose two stages are on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import smdist.modelparallel.torch as smp
from benchmarks.gpu.devices import here
from benchmarks.pipeline_throughput.model import LAYERS, MICROBATCHES, batch, gpt, loss_of, stage
from sagemaker_dist import ModelParallel

_now: dict[str, Callable[[], Any]] = {}  # the step that is measured


def one_process() -> float:
    """Prepare the whole model on one rank; return the norm of its gradients."""
    model = gpt().to(here())
    ids, labels = _batch()

    def step() -> None:
        model.zero_grad()
        for row, label in zip(ids.split(1), labels.split(1), strict=True):
            (loss_of(model(row), label) / MICROBATCHES).backward()

    return _ready(step, model.parameters)


def by_torch() -> float:
    """Prepare torch's 1F1B over this group, half of the layers on each rank."""
    rank = dist.get_rank()
    module = stage((LAYERS // 2, LAYERS // 2), rank).to(here())
    ids, labels = _batch()
    schedule = Schedule1F1B(
        PipelineStage(module, rank, 2, here()), MICROBATCHES, loss_fn=_share, scale_grads=False
    )

    def step() -> None:
        module.zero_grad()
        schedule.step(target=labels) if rank else schedule.step(ids)

    return _ready(step, module.parameters)


def by_smdist() -> float:
    """Prepare smdist's pipeline, cut by its planner."""
    smp.init(ModelParallel(pipeline_parallel_degree=2, microbatches=MICROBATCHES))
    ids, labels = _batch()
    model = smp.parallelize(gpt().to(here()), example=ids)

    def step() -> None:
        model.zero_grad()
        model.train_step(ids, loss_of, targets=labels)

    return _ready(step, model.parameters)


def steps(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of this many steps."""
    torch.accelerator.synchronize()
    dist.barrier()  # waits for ranks that are late
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        _now["step"]()
    torch.accelerator.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def _batch() -> tuple[Tensor, Tensor]:
    ids, labels = batch()
    return ids.to(here()), labels.to(here())


def _share(logits: Tensor, labels: Tensor) -> Tensor:
    return loss_of(logits, labels) / MICROBATCHES


def _ready(step: Callable[[], Any], parameters: Callable[[], Any]) -> float:
    """Run a step, and return the sum of the squares of this rank's gradients."""
    _now["step"] = step
    step()
    squares = [float(each.grad.square().sum()) for each in parameters() if each.grad is not None]
    return sum(squares)
