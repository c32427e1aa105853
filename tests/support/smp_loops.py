# SPDX-License-Identifier: Apache-2.0
"""Training loops with SMP's names, and equivalent loops in plain PyTorch with equal numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import zoo
from torch import Tensor, nn

import smdist.modelparallel.torch as smp
from smdist.modelparallel.torch.capture import capture
from smdist.modelparallel.torch.randomness import RngStream, drawing


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Model and options of a training loop."""

    model: str = "gpt2"
    rows: int = 8
    dropout: float = 0.0
    microbatches: int = 4
    steps: int = 3
    accumulate: int = 1
    max_norm: float | None = None
    rate: float = 1e-2
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Result of a training loop."""

    losses: list[float]
    evaluations: list[float]
    norms: list[float]
    state: dict[str, Tensor]


def batch_of(batch: Any, step: int) -> Any:
    """Return the data of one step, different in each step."""
    return {
        key: value.roll(step, -1) if key in ("input_ids", "labels") else value
        for key, value in batch.items()
    }


def split_loop(loop: Loop, degree: int) -> Trained:
    """Train on the existing ranks."""
    torch.set_num_threads(1)
    options = {"pipeline": "interleaved", **loop.options}
    smp.init(
        smp.ModelParallel(
            pipeline_parallel_degree=degree, microbatches=loop.microbatches, **options
        )
    )
    specimen = zoo.tiny(loop.model, rows=loop.rows, dropout=loop.dropout)
    optimizer = torch.optim.AdamW(specimen.model.parameters(), lr=loop.rate)
    model = smp.DistributedModel(specimen.model, trace_device="cpu")  # without measurement
    optimizer = smp.DistributedOptimizer(optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    @smp.step
    def train(model, batch):
        loss = model(**batch)["loss"]
        model.backward(loss)
        return loss

    @smp.step
    def test(model, batch):
        return model(**batch)["loss"]

    losses, evaluations, norms = [], [], []
    for step in range(loop.steps):
        optimizer.zero_grad()
        for part in range(loop.accumulate):
            batch = mine(batch_of(specimen.batch, step + 10 * part))
            losses.append(train(model, batch).reduce_mean().item())
        if loop.max_norm is not None:
            norms.append(smp.clip_grad_norm_(model.parameters(), loop.max_norm).item())
        optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            evaluations.append(test(model, mine(specimen.batch)).reduce_mean().item())
        model.train()
    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    return Trained(losses=losses, evaluations=evaluations, norms=norms, state=state)


def mine(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return this replica's rows."""
    count, at = smp.dp_size(), smp.dp_rank()
    return {key: value.chunk(count)[at] for key, value in batch.items()}


def plain_loop(loop: Loop) -> Trained:
    """Train in this process."""
    specimen = zoo.tiny(loop.model, rows=loop.rows, dropout=loop.dropout)
    model = specimen.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=loop.rate)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    program = capture(model, pieces(specimen.batch, loop.microbatches)[0]).program
    losses, evaluations, norms = [], [], []
    for step in range(loop.steps):
        optimizer.zero_grad()
        for part in range(loop.accumulate):
            batch = batch_of(specimen.batch, step + 10 * part)
            number = step * loop.accumulate + part
            losses.append(_accumulated(model, program, pieces(batch, loop.microbatches), number))
        if loop.max_norm is not None:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), loop.max_norm).item())
        optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            parts = pieces(specimen.batch, loop.microbatches)
            evaluations.append(sum(model(**p)["loss"].item() for p in parts) / len(parts))
        model.train()
    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    return Trained(losses=losses, evaluations=evaluations, norms=norms, state=state)


def pieces(batch: dict[str, Tensor], number: int) -> list[dict[str, Tensor]]:
    """Return the microbatches of a batch."""
    return [{k: v.chunk(number)[at] for k, v in batch.items()} for at in range(number)]


def worst(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the largest difference of any value, relative to its tensor's largest value."""
    assert one.keys() == other.keys()

    return max(
        ((one[k] - other[k]).abs().max() / other[k].abs().max().clamp(min=1e-12)).item()
        for k in one
        if one[k].is_floating_point()
    )


def _accumulated(model: Any, program: Any, parts: list[Any], step: int) -> float:
    total = 0.0
    for number, part in enumerate(parts):
        with drawing(program, RngStream(step=step, microbatch=number)):
            loss = model(**part)["loss"]
        (loss / len(parts)).backward()
        total += loss.item() / len(parts)
    return total
