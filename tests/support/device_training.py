# SPDX-License-Identifier: Apache-2.0
"""Training loop by SMP's names for a device or the CPU, and the same loop in one process."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import accelerator
import torch
from smp_nets import Net, batch, net
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import smdist.modelparallel.torch as smp
from smdist.modelparallel.torch.capture import capture
from smdist.modelparallel.torch.randomness import RngStream, drawing

MICROBATCHES, MAX_NORM = 4, 0.5


@dataclass(frozen=True, kw_only=True)
class Training:
    """Layout and options of a training.

    Attributes:
        degree: Number of ranks in a pipeline.
        created_on: Type of device on which the model is created; batches are on the device.
        autocast: True to compute in bfloat16.
        scaled: True to scale the loss.
        steps: Numbers of the steps to train.
        resumed_from: Folder with a checkpoint to load at the start; "" to load none.
        saved_to: Folder in which to save a checkpoint at the end; "" to save none.
        options: Further arguments of smp.ModelParallel.
    """

    degree: int
    created_on: str = accelerator.NAME
    autocast: bool = False
    scaled: bool = False
    steps: range = range(3)
    resumed_from: str = ""
    saved_to: str = ""
    options: dict[str, Any] = field(default_factory=dict)


class Dropping(Net):
    """The small model, tied, with dropout before its head."""

    def __init__(self) -> None:
        super().__init__(tied=True)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor, scale: float = 1.0, *, extra: Tensor | None = None) -> Any:
        """Return the logits of eight classes."""
        return {"logits": self.head(self.drop(self.layers(x) * scale)), "width": 8}


def model() -> Dropping:
    """Return the model on the CPU, with the same weights every time."""
    net()  # one thread
    with torch.random.fork_rng(devices=[], device_type="cpu"):
        torch.manual_seed(0)
        return Dropping()


def model_on_device() -> Dropping:
    """Return the model on the current device. torch gives it new weights there: tie them again."""
    made = model().to(torch.device(accelerator.NAME, torch.accelerator.current_device_index()))
    made.head.weight = made.layers[0][0].weight
    return made


def data(step: int) -> list[Tensor]:
    """Return the batch of one step on the device."""
    return [each.roll(step, 0).to(accelerator.NAME) for each in batch()]


def cast(training: Training) -> Any:
    """Return the context in which the model computes."""
    return torch.autocast(accelerator.NAME, torch.bfloat16) if training.autocast else nullcontext()


def loss_of(whole: Any, x: Tensor, y: Tensor, training: Training) -> Tensor:
    """Return the loss of one microbatch."""
    with cast(training):
        logits = whole(x)["logits"]
    return nn.functional.cross_entropy(logits.float(), y)


def plain(training: Training) -> tuple[list[float], dict[str, Tensor]]:
    """Train in this process; return losses and weights."""
    whole = model_on_device()
    optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01)
    program = capture(whole, (data(0)[0][:2],)).program
    losses = []
    for step in training.steps:
        optimizer.zero_grad()
        parts = zip(*(each.chunk(MICROBATCHES) for each in data(step)), strict=True)
        found = []
        for number, (x, y) in enumerate(parts):
            with drawing(program, RngStream(step=step, microbatch=number)):
                found.append(loss_of(whole, x, y, training))
            (found[-1] / MICROBATCHES).backward()
        nn.utils.clip_grad_norm_(whole.parameters(), MAX_NORM)
        optimizer.step()
        losses.append(sum(each.item() for each in found) / MICROBATCHES)
    return losses, {k: v.detach().cpu() for k, v in whole.state_dict().items()}


def split(rank: int, size: int, training: Training) -> tuple[list[float], dict[str, Tensor]]:
    """Train on this rank; return this replica's losses, and the weights of the whole model."""
    number = rank % min(2, torch.accelerator.device_count())
    os.environ["LOCAL_RANK"] = str(number)
    count = MICROBATCHES // (size // training.degree)
    options = {"pipeline": "interleaved", "microbatches": count, **training.options}
    smp.init(smp.ModelParallel(pipeline_parallel_degree=training.degree, **options))
    whole = model_on_device() if training.created_on == accelerator.NAME else model()
    wrapped = smp.DistributedModel(whole, trace_device="cpu")
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(wrapped.parameters(), lr=0.01))
    scaler = smp.amp.GradScaler(enabled=training.scaled)

    @smp.step
    def train(network: Any, x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(network, x, y, training)
        network.backward(scaler.scale(loss) if training.scaled else loss)
        return loss

    losses = []
    if training.resumed_from:
        smp.resume_from_checkpoint(training.resumed_from, model=wrapped, optimizer=optimizer)
    for step in training.steps:
        optimizer.zero_grad()
        mine = [each.chunk(smp.dp_size())[smp.dp_rank()] for each in data(step)]
        found = train(wrapped, *mine)
        scaler.unscale_(optimizer)
        smp.clip_grad_norm_(wrapped.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        losses.append(found.reduce_mean().item())
    if training.saved_to:
        smp.save_checkpoint(training.saved_to, "some", model=wrapped, optimizer=optimizer)
    assert {torch.device(accelerator.NAME, number)} == {p.device for p in wrapped.parameters()}
    return losses, {name: whole_of(value).cpu() for name, value in wrapped.state_dict().items()}


def whole_of(value: Tensor) -> Tensor:
    """Return a tensor that may be sharded; collective."""
    return value.full_tensor() if isinstance(value, DTensor) else value.detach()
