# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: training steps of one layout, their time and the peak of memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp  # shards load it
from torch import Tensor

import smdist.modelparallel.torch as smp
from benchmarks.plan_accuracy.models import batch, loss_of, made
from sagemaker_dist import ModelParallel

_now: list[Callable[[], Any]] = []
_before: list[int] = []


@smp.step
def _train(model: Any, x: Tensor) -> Tensor:
    loss = loss_of(model(x))
    model.backward(loss)
    return loss


def prepare(name: str, options: dict[str, Any], checkpointed: list[str]) -> None:
    """Run the first steps of a model with these options and checkpointed modules."""
    x = batch(name)
    smp.init(ModelParallel(**options))
    _warm_up(x)
    _before.append(_resident("VmRSS"))
    whole = made(name)
    for module in checkpointed:
        smp.set_activation_checkpointing(whole.get_submodule(module))
    model = smp.parallelize(whole, costs="estimate")
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters()))

    def step() -> None:
        optimizer.zero_grad()
        _train(model, x)
        optimizer.step()

    _now.append(step)
    for _ in range(2):
        step()


def measure() -> float:
    """Return the seconds of one step."""
    dist.barrier()
    begin = time.perf_counter()
    _now[0]()
    return time.perf_counter() - begin


def process_bytes() -> tuple[int, int]:
    """Return this process's memory before the model, and its peak in a step."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    dist.barrier()
    _now[0]()
    return _before[0], _resident("VmHWM")


def _warm_up(x: Tensor) -> None:
    """Load what training of any model loads, before memory is read."""
    small = torch.nn.Linear(x.shape[-1], 8)
    optimizer = torch.optim.Adam(small.parameters())  # loads torch's compiler
    small(x).sum().backward()
    optimizer.step()


def _resident(key: str) -> int:
    """Return a number of bytes from /proc/self/status, such as VmRSS."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))
