# SPDX-License-Identifier: Apache-2.0
"""Training of a small model on the device, with optimizer state on the device or on the host."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import accelerator
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import smdist.modelparallel.torch as smp

STEPS = 3
WIDTH = 64
DYNAMIC = {"init_scale": 2.0**24, "scale_factor": 128, "scale_window": 2}  # step 0 overflows


class Mlp(nn.Module):
    """Pair of products, which tensor parallelism splits; norms lack 16 bits on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.relu(self.up(x)))


@dataclass
class Trained:
    """Facts of a training on one rank.

    Attributes:
        losses: Mean loss of each step.
        weights: Whole parameters of this rank, on the CPU; master weights where there are any.
        scale: Loss scale at the end.
        skipped: True for each step that was skipped.
        places: Types of devices of parameters, of gradients and of optimizer state.
        state_bytes: Bytes of optimizer state and master weights of this rank.
        planned_bytes: Bytes of weights, gradients and optimizer state that the plan forecasts.
        device_bytes: Bytes that are left on the device at the end, without gradients.
        pinned_bytes: Bytes of pinned buffers; None without offload.
    """

    losses: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    scale: float = 1.0
    skipped: list[bool] = field(default_factory=list)
    places: tuple[set[str], ...] = ()
    state_bytes: int = 0
    planned_bytes: int = 0
    device_bytes: int = 0
    pinned_bytes: int | None = None


def net(name: str = accelerator.NAME) -> nn.Module:
    """Return the model on a device, with the same weights every time."""
    with torch.random.fork_rng(devices=[], device_type="cpu"):
        torch.manual_seed(0)
        return nn.Sequential(*(Mlp() for _ in range(4))).to(name)


def batch(step: int, name: str = accelerator.NAME) -> list[Tensor]:
    """Return input and target of a step on a device."""
    numbers = torch.Generator().manual_seed(step)
    return [each.to(name) for each in torch.randn(2, 16, WIDTH, generator=numbers)]


@smp.step
def run(model: Any, x: Tensor, y: Tensor) -> Tensor:
    """Run forward and backward for one microbatch."""
    loss = nn.functional.mse_loss(model(x).float(), y)
    model.backward(loss)
    return loss


def start(**options: Any) -> None:
    """Start a session with two microbatches."""
    smp.init(smp.ModelParallel(**{"microbatches": 2, **options}))


def made(kind: Any = torch.optim.AdamW, *, scaled: bool = False, **options: Any) -> Any:
    """Return the model and its optimizer; a dynamic loss scale if `scaled`."""
    model = smp.DistributedModel(net(), trace_device="cpu")
    scale = {"dynamic_loss_scale": True, "dynamic_loss_args": DYNAMIC} if scaled else {}
    inner = kind(model.parameters(), **{"lr": 0.01, **options})
    return model, smp.DistributedOptimizer(inner, **scale)


def train(
    options: dict[str, Any],
    *,
    steps: Iterable[int] = range(STEPS),
    made_by: dict[str, Any] | None = None,
    resumed_from: str = "",
    saved_to: str = "",
) -> Trained:
    """Train on this rank, from a checkpoint and to one if folders are given."""
    before = _device_bytes()
    start(**options)
    model, optimizer = made(scaled=bool(options.get("fp16")), **(made_by or {}))
    if resumed_from:
        smp.resume_from_checkpoint(resumed_from, model=model, optimizer=optimizer)
    found = Trained()
    for step in steps:
        optimizer.zero_grad()
        found.losses.append(run(model, *batch(step)).reduce_mean().item())
        optimizer.step()
        found.skipped.append(optimizer.overflow)
    if saved_to:
        smp.save_checkpoint(saved_to, "some", model=model, optimizer=optimizer)
    _describe(found, model, optimizer)
    optimizer.zero_grad()
    found.device_bytes = _device_bytes() - before
    smp.session.end()
    return found


def _describe(found: Trained, model: Any, optimizer: Any) -> None:
    parameters = list(model.parameters())
    state = [each for of in optimizer.state.values() for key, each in of.items() if key != "step"]
    masters = [] if model.masters is None else [model.masters.of(each) for each in parameters]
    kept = [*state, *(each for each in masters if each is not None)]
    gradients = [each.grad for each in parameters if each.grad is not None]
    found.places = tuple({t.device.type for t in each} for each in (parameters, gradients, kept))
    found.state_bytes = sum(_local(each).nbytes for each in kept)
    found.planned_bytes = sum(each.state_bytes for each in model.plan.forecast.memory)
    found.weights = {name: _whole(each) for name, each in model.state_dict().items()}
    found.scale = optimizer.loss_scale
    found.pinned_bytes = None if model.host_update is None else model.host_update.buffer_bytes


def _device_bytes() -> int:
    gc.collect()
    torch.accelerator.synchronize()
    return torch.accelerator.memory_allocated()


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _whole(value: Tensor) -> Tensor:
    whole = value.full_tensor() if isinstance(value, DTensor) else value
    return whole.detach().cpu().clone()


def differing(one: Trained, other: Trained) -> list[str]:
    """Return the names of weights that are not the same to the bit."""
    assert one.weights.keys() == other.weights.keys()
    return [name for name, each in one.weights.items() if not each.equal(other.weights[name])]
