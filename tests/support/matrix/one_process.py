# SPDX-License-Identifier: Apache-2.0
"""Training of the whole model in one process: microbatch by microbatch, then the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from smdist.modelparallel.torch.capture import Captured, arguments_of, capture
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.randomness import RngStream, drawing

from .case import MICROBATCHES, batches, loss_of, optimizer_of, specimen_of

Arrays = dict[str, np.ndarray | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Result of a training run.

    Attributes:
        gradients: Gradients of the first step, by the model's own names; None if there is none.
        losses: Mean over all microbatches, by step.
    """

    gradients: Arrays
    losses: tuple[float, ...]


def alone(name: str, steps: int) -> Run:
    """Train a model of the zoo in this process."""
    specimen = specimen_of(name)
    optimizer = optimizer_of(specimen.model.parameters())
    captured = capture(specimen.model, Batch.of(specimen.batch).microbatch(MICROBATCHES))
    gradients: Arrays = {}
    losses = []
    for step, batch in enumerate(batches(specimen, steps)):
        optimizer.zero_grad()
        losses.append(_accumulated(captured, batch, step))
        gradients = gradients or gradients_of(specimen.model)
        optimizer.step()
    return Run(gradients=gradients, losses=tuple(losses))


def _accumulated(captured: Captured, batch: Any, step: int) -> float:
    whole, total = Batch.of(batch), 0.0
    for number in range(MICROBATCHES):
        args, kwargs = arguments_of(whole.microbatch(MICROBATCHES, number))
        draws = RngStream(step=step, microbatch=number)
        with drawing(captured.program, draws):
            loss = loss_of(captured.model(*args, **kwargs)) / MICROBATCHES
            loss.backward()
        total += float(loss.detach())
    return total


def gradients_of(model: nn.Module) -> Arrays:
    """Return the gradients by first name; tied parameters have one."""
    return {name: array_of(parameter.grad) for name, parameter in model.named_parameters()}


def array_of(tensor: torch.Tensor | None) -> np.ndarray | None:
    """Return a tensor's numbers: arrays travel between processes without file descriptors."""
    return None if tensor is None else tensor.detach().cpu().numpy().copy()
