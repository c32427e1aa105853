# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: DDP steps of a model that sleeps in place of a GPU's computation."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.ddp_step.bare import BareMean

LAYERS = 24
FORWARD = 0.1  # seconds of computation per step, spread evenly over the layers
BACKWARD = 0.2
GRADIENT_BYTES = 25 << 20
_BUCKET_MIB = 4

_models: dict[str, DistributedDataParallel] = {}  # models by peer
_ready = [0.0]  # time at which the last gradient was ready


class Compute(torch.autograd.Function):
    """Layer with the loss scale/2 * |weight|²; its sleep holds neither the GIL nor a processor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, scale: float) -> torch.Tensor:
        time.sleep(FORWARD / LAYERS)
        ctx.save_for_backward(weight)
        ctx.scale = scale
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[override]
        time.sleep(BACKWARD / LAYERS)
        (weight,) = ctx.saved_tensors
        own = weight * ctx.scale
        _ready[0] = time.perf_counter()
        return gradient, own, None


class Layer(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(GRADIENT_BYTES // 4 // LAYERS))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Compute.apply(x, self.weight, self.scale)  # type: ignore[no-any-return,no-untyped-call]


def prepare(peer: str) -> list[int]:
    """Create the model and check its gradients; return the number of bytes in each DDP bucket.

    DDP rebuilds its buckets in the second step and logs them in the third.
    """
    scale = dist.get_rank() + 1.0
    layers = nn.Sequential(*[Layer(scale) for _ in range(LAYERS)])
    _models[peer] = model = DistributedDataParallel(
        layers, bucket_cap_mb=_BUCKET_MIB, gradient_as_bucket_view=True
    )
    if peer == "bare":
        model.register_comm_hook(BareMean(), BareMean.begin)
    for _ in range(3):
        _step(model)
        _check(peer, layers)
    buckets = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    return [int(size) for size in buckets.split(",")]


def _check(peer: str, model: nn.Module) -> None:
    mean = (dist.get_world_size() + 1) / 2
    for number, weight in enumerate(model.parameters()):
        expected = weight.detach() * mean
        assert weight.grad is not None, f"{peer}: layer {number} has no gradient"
        torch.testing.assert_close(
            weight.grad, expected, msg=lambda text, n=number: f"{peer}, layer {n}: {text}"
        )


def smdist(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of this many steps, one after another."""
    return _measure(_models["smdist"], iterations)


def gloo(iterations: int) -> tuple[float, float]:
    return _measure(_models["gloo"], iterations)


def bare(iterations: int) -> tuple[float, float]:
    return _measure(_models["bare"], iterations)


def compute(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of steps without communication."""
    with _models["gloo"].no_sync():
        return gloo(iterations)


def ready(iterations: int) -> tuple[float, float]:
    """Return the seconds from the start of each step until the last gradient is ready, summed."""
    dist.barrier()
    cpu, seconds = time.process_time(), 0.0
    for _ in range(iterations):
        begin = time.perf_counter()
        _step(_models["smdist"])
        seconds += _ready[0] - begin
    return seconds, time.process_time() - cpu


def _measure(model: DistributedDataParallel, iterations: int) -> tuple[float, float]:
    dist.barrier()  # waits for ranks that are late
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        _step(model)
    return time.perf_counter() - wall, time.process_time() - cpu


def _step(model: DistributedDataParallel) -> None:
    model.zero_grad()
    model(torch.zeros(1)).sum().backward()
