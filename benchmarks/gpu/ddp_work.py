# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: DDP steps of a model on a device."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.devices import here

_ROWS = 64

_models: dict[str, DistributedDataParallel] = {}  # "step": the model of this rank's group


def prepare(layers: int, width: int) -> int:
    """Create the model, check its gradients, and return their bytes."""
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
    model = DistributedDataParallel(nn.Sequential(*parts).to(here()), gradient_as_bucket_view=True)
    _models["step"] = model
    for _ in range(3):  # buckets are built anew in the second step
        _step(model)
    own = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    checked = own[0].sum().cpu()
    sums = [torch.empty_like(checked) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, checked)
    assert all(each.item() == checked.item() for each in sums), f"ranks have {sums}"
    return sum(gradient.nbytes for gradient in own)


def steps(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of this many steps, one after another."""
    torch.accelerator.synchronize()
    dist.barrier()  # waits for ranks that are late
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        _step(_models["step"])
    torch.accelerator.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def compute(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of steps without communication."""
    with _models["step"].no_sync():
        return steps(iterations)


def _step(model: DistributedDataParallel) -> None:
    model.zero_grad()
    width = next(model.parameters()).shape[1]
    torch.manual_seed(dist.get_rank())
    model(torch.randn(_ROWS, width, device=here())).square().mean().backward()
