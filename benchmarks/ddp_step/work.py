# SPDX-License-Identifier: Apache-2.0
"""What every rank does: steps of DDP on a model that sleeps where a GPU would compute."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAYERS = 24
FORWARD = 0.1  # seconds of compute in a step, evenly over the layers
BACKWARD = 0.2
GRADIENT_BYTES = 25 << 20
_BUCKET_MIB = 4

_now: dict[str, Any] = {}  # the model that is measured, and its input


class Compute(torch.autograd.Function):
    """A layer whose loss is scale/2 * |weight|²; asleep, it holds neither GIL nor processor."""

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
        return gradient, weight * ctx.scale, None


class Layer(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(GRADIENT_BYTES // 4 // LAYERS))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Compute.apply(x, self.weight, self.scale)  # type: ignore[no-any-return,no-untyped-call]


def prepare(peer: str) -> int:
    """Make the model and check gradients: DDP makes its buckets anew in the second step.

    In the third it logs them. Returns how many bytes DDP's first bucket holds.
    """
    scale = dist.get_rank() + 1.0
    model = nn.Sequential(*[Layer(scale) for _ in range(LAYERS)])
    _now["model"] = DistributedDataParallel(
        model, bucket_cap_mb=_BUCKET_MIB, gradient_as_bucket_view=True
    )
    _now["x"] = torch.zeros(1)
    for _ in range(3):
        _step()
        _check(peer, model)
    buckets = _now["model"]._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    return int(buckets.split(",")[0])


def _check(peer: str, model: nn.Module) -> None:
    mean = (dist.get_world_size() + 1) / 2
    for number, weight in enumerate(model.parameters()):
        expected = weight.detach() * mean
        assert weight.grad is not None, f"{peer}: layer {number} has no gradient"
        torch.testing.assert_close(
            weight.grad, expected, msg=lambda text, n=number: f"{peer}, layer {n}: {text}"
        )


def measure(iterations: int) -> tuple[float, float]:
    """Wall and processor seconds of so many steps, one after the other."""
    dist.barrier()  # whoever was late is here now
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        _step()
    return time.perf_counter() - wall, time.process_time() - cpu


def compute(iterations: int) -> tuple[float, float]:
    """The same without communication."""
    with _now["model"].no_sync():
        return measure(iterations)


def _step() -> None:
    model = _now["model"]
    model.zero_grad()
    model(_now["x"]).sum().backward()
