# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: steps of the model of `ddp_step`, by smp's replicas and by DDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import smdist.modelparallel.torch as smp
from benchmarks.ddp_step.work import LAYERS, Layer
from benchmarks.harness.timed_steps import timed
from sagemaker_dist import ModelParallel

_BUCKET_MIB = 4
_now: dict[str, Callable[[], Any]] = {}  # steps that are measured, by name


@smp.step
def _train(model: Any, x: Tensor) -> None:
    model.backward(model(x).sum())


def _layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[Layer(1.0) for _ in range(LAYERS)])


def by_smp() -> None:
    """Prepare smp with one rank a pipeline, and as many replicas as ranks."""
    smp.init(ModelParallel(pipeline_parallel_degree=1, microbatches=1))
    model = smp.DistributedModel(_layers())

    def step() -> None:
        model.zero_grad()
        _train(model, torch.ones(1))

    _ready("smp", step, model)


def by_ddp() -> None:
    """Prepare DDP with buckets of 4 MiB."""
    model = DistributedDataParallel(
        _layers(), bucket_cap_mb=_BUCKET_MIB, gradient_as_bucket_view=True
    )

    def step() -> None:
        model.zero_grad()
        model(torch.ones(1)).sum().backward()

    _ready("ddp", step, model)


def _ready(name: str, step: Callable[[], Any], model: nn.Module) -> None:
    """Check a contender's gradients, and keep its step."""
    for _ in range(3):  # DDP makes its buckets anew in the second one
        step()
        for weight in model.parameters():
            assert weight.grad is not None, f"{name}: a layer has no gradient"
            torch.testing.assert_close(weight.grad, weight.detach())
    _now[name] = step


def smp_step(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of this many steps, one after another."""
    return timed(_now["smp"], iterations)


def ddp_step(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of this many steps of DDP."""
    return timed(_now["ddp"], iterations)
