# SPDX-License-Identifier: Apache-2.0
"""Results of training, and training in one process: microbatch by microbatch, then the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matrix.case import loss_of
from matrix.one_process import Arrays, Run, gradients_of

from smdist.modelparallel.torch.capture import Captured, arguments_of, capture
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.randomness import RngStream, drawing

from .tensor_case import MICROBATCHES, TensorCase, optimizer_of, specimen_of, steps_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRun:
    """Result of one rank.

    Attributes:
        run: Gradients of the first step, whole, of the parameters on this rank; losses by step.
        share: Share of the model's elements in split parameters.
        whole: Modules that stay whole, as "name: reason".
        sliced: Number of split regions after which sequences are split.
    """

    run: Run
    share: float
    whole: tuple[str, ...]
    sliced: int


def alone(case: TensorCase, steps: int) -> Run:
    """Train the case's model in this process; its layout does not count."""
    specimen = specimen_of(case)
    optimizer = optimizer_of(case, specimen.model.parameters())
    captured = capture(specimen.model, Batch.of(specimen.batch).microbatch(MICROBATCHES))
    gradients: Arrays = {}
    losses = []
    for step, batch in enumerate(steps_of(specimen, steps)):
        optimizer.zero_grad()
        losses.append(_accumulated(captured, batch, step))
        gradients = gradients or gradients_of(specimen.model)
        optimizer.step()
    return Run(gradients=gradients, losses=tuple(losses))


def _accumulated(captured: Captured, batch: Any, step: int) -> float:
    whole, total = Batch.of(batch), 0.0
    for number in range(MICROBATCHES):
        args, kwargs = arguments_of(whole.microbatch(MICROBATCHES, number))
        with drawing(captured.program, RngStream(step=step, microbatch=number)):
            loss = loss_of(captured.model(*args, **kwargs)) / MICROBATCHES
            loss.backward()
        total += float(loss.detach())
    return total
