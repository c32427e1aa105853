# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: steps of a model in Horovod's names or DDP's, and many small gradients."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.ddp_step.work import LAYERS, Layer
from benchmarks.harness.timed_steps import timed

SMALL = 1000  # gradients
SMALL_BYTES = 1024

_steps: dict[str, Callable[[], None]] = {}
_gradients = [torch.ones(SMALL_BYTES // 4) for _ in range(SMALL)]


def prepare_horovod(bucket_mib: int) -> None:
    """Create the model and an optimizer in Horovod's names, and check gradients of a step."""
    import smdist.dataparallel.torch.horovod as hvd

    os.environ["SMDIST_FUSION_BYTES"] = str(bucket_mib << 20)
    hvd.init()
    model = _model()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    plain: Any = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    _prepare("horovod", model, optimizer, model)


def prepare_ddp(bucket_mib: int) -> None:
    """Create the same model in DDP, and check gradients of a step."""
    model = _model()
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mib, gradient_as_bucket_view=True)
    _prepare("ddp", ddp, torch.optim.SGD(model.parameters(), lr=0.0), model)


def prepare_smdists_ddp(bucket_mib: int) -> None:
    """Create the same model in smdist's subclass of DDP, and check gradients of a step."""
    from smdist.dataparallel.torch import DistributedDataParallel as SmdistDDP

    model = _model()
    ddp = SmdistDDP(model, fusion_bytes=bucket_mib << 20, progress_seconds=None)
    _prepare("smdists_ddp", ddp, torch.optim.SGD(model.parameters(), lr=0.0), model)


def horovod(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of steps in Horovod's names."""
    return timed(_steps["horovod"], iterations)


def ddp(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of steps of DDP."""
    return timed(_steps["ddp"], iterations)


def smdists_ddp(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of steps of smdist's DDP."""
    return timed(_steps["smdists_ddp"], iterations)


def fused(iterations: int) -> tuple[float, float]:
    """Reduce all small gradients by one call."""
    import smdist.dataparallel.torch.horovod as hvd

    return timed(lambda: hvd.grouped_allreduce(_gradients, op=hvd.Sum), iterations)


def started(iterations: int) -> tuple[float, float]:
    """Start an all-reduce for each small gradient, then wait for all of them."""
    import smdist.dataparallel.torch.horovod as hvd

    def reduce() -> None:
        handles = [hvd.allreduce_async(each, op=hvd.Sum) for each in _gradients]
        for handle in handles:
            hvd.synchronize(handle)

    return timed(reduce, iterations)


def single(iterations: int) -> tuple[float, float]:
    """Reduce the small gradients one by one."""
    import smdist.dataparallel.torch.horovod as hvd

    def reduce() -> None:
        for each in _gradients:
            hvd.allreduce(each, op=hvd.Sum)

    return timed(reduce, iterations)


def _model() -> nn.Sequential:
    torch.manual_seed(0)  # the same weights on all ranks
    return nn.Sequential(*[Layer(dist.get_rank() + 1.0) for _ in range(LAYERS)])


def _prepare(name: str, callable_model: Any, optimizer: Any, model: nn.Module) -> None:
    def step() -> None:
        optimizer.zero_grad()
        callable_model(torch.zeros(1)).sum().backward()
        optimizer.step()

    _steps[name] = step
    mean = (dist.get_world_size() + 1) / 2
    for _ in range(3):
        step()
        for weight in model.parameters():
            assert weight.grad is not None
            torch.testing.assert_close(weight.grad, weight.detach() * mean)
