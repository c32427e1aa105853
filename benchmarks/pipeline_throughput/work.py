# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: forward and backward steps of the GPT, without an optimizer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import smdist.modelparallel.torch as smp
from benchmarks.pipeline_throughput.model import (
    LENGTH,
    MICROBATCHES,
    WIDTH,
    batch,
    gpt,
    loss_of,
    stage,
)
from sagemaker_dist import ModelParallel

SAMPLES = 32  # compared elements of each gradient

_now: dict[str, Callable[[], Any]] = {}  # measured functions, by name
_parameters: dict[str, dict[str, nn.Parameter]] = {}


def one_process() -> None:
    """Prepare the whole model in one process, one microbatch after another."""
    model = gpt()
    ids, labels = batch()

    def step() -> None:
        model.zero_grad()
        for row, label in zip(ids.split(1), labels.split(1), strict=True):
            (loss_of(model(row), label) / MICROBATCHES).backward()

    _ready("one", step, model.named_parameters())


def by_torch(layers: tuple[int, int]) -> None:
    """Prepare torch's 1F1B with these layers on two stages, and shapes given in advance."""
    rank = dist.get_rank()
    module = stage(layers, rank)
    ids, labels = batch()
    between = torch.empty(1, LENGTH, WIDTH, requires_grad=True)
    taken = between if rank else ids[:1]
    given = module(taken).detach().requires_grad_()
    one = PipelineStage(
        module, rank, 2, torch.device("cpu"), input_args=(taken,), output_args=(given,)
    )
    schedule = Schedule1F1B(one, MICROBATCHES, loss_fn=_share, scale_grads=False)

    def step() -> None:
        module.zero_grad()
        schedule.step(target=labels) if rank else schedule.step(ids)

    # a slice of Sequential keeps the layers' numbers
    _ready(name_of(layers), step, module.named_parameters())


def by_us(pipeline: str) -> str:
    """Prepare smdist's pipeline, cut by its planner; return the first and last units of stages."""
    smp.init(
        ModelParallel(pipeline_parallel_degree=2, microbatches=MICROBATCHES, pipeline=pipeline)
    )
    ids, labels = batch()
    model = smp.parallelize(gpt(), example=ids)

    def step() -> None:
        model.zero_grad()
        model.train_step(ids, loss_of, targets=labels)

    _ready("smdist", step, model.named_parameters())
    return ", ".join(f"{units[0]} to {units[-1]}" for units in model.plan.stages)


def name_of(layers: tuple[int, int]) -> str:
    return f"torch {layers[0]}/{layers[1]}"


def _share(logits: Tensor, labels: Tensor) -> Tensor:
    return loss_of(logits, labels) / MICROBATCHES


def _ready(
    name: str, step: Callable[[], Any], parameters: Iterable[tuple[str, nn.Parameter]]
) -> None:
    _now[name], _parameters[name] = step, dict(parameters)
    step()


def gradients(name: str) -> dict[str, list[float]]:
    """Return the first elements and the norm of each gradient on this rank after a step."""
    found = {}
    for key, parameter in _parameters[name].items():
        if parameter.grad is not None:
            few = parameter.grad.flatten()[:SAMPLES].tolist()
            found[key] = [*few, float(parameter.grad.norm())]
    return found


def measure(iterations: int, name: str) -> tuple[float, float]:
    """Return the wall and processor seconds of this many steps."""
    dist.barrier()  # waits for ranks that are late
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        _now[name]()
    return time.perf_counter() - wall, time.process_time() - cpu
