# SPDX-License-Identifier: Apache-2.0
"""Work of each rank that trains a case's model with split layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from matrix.case import loss_of
from matrix.one_process import Arrays, Run, array_of

import smdist.modelparallel.torch as smp
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.tensor_splits import split_of

from tensor_matrix.tensor_case import MICROBATCHES, TensorCase, optimizer_of, specimen_of, steps_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRun:
    """Result of one rank.

    Attributes:
        run: Gradients of the first step, whole, of the parameters on this rank; losses by step.
        share: Share of the model's elements in split parameters.
        whole: Modules that stay whole, as "name: reason".
    """

    run: Run
    share: float
    whole: tuple[str, ...]


@smp.step
def train_step(model: Any, batch: Any) -> Any:
    """Run one microbatch forward and backward."""
    output = model(**batch) if isinstance(batch, dict) else model(*batch)
    loss = loss_of(output)
    model.backward(loss)
    return loss


def trained(rank: int, size: int, case: TensorCase, steps: int) -> SplitRun:
    """Train a case; return what this rank knows."""
    torch.set_num_threads(1)
    degrees = {
        "tensor_parallel_degree": case.tensor,
        "pipeline_parallel_degree": case.stages,
        "microbatches": MICROBATCHES // case.replicas,
    }
    smp.init({**degrees, "ddp": True})
    specimen = specimen_of(case)
    model = smp.DistributedModel(specimen.model, trace_device="cpu")
    optimizer = smp.DistributedOptimizer(optimizer_of(case, model.parameters()))
    gradients: Arrays = {}
    losses = []
    for batch in steps_of(specimen, steps):
        optimizer.zero_grad()
        part = Batch.of(batch).microbatch(smp.rdp_size(), smp.rdp_rank()).data
        losses.append(float(train_step(model, part).reduce_mean()))
        gradients = gradients or {name: _whole(p) for name, p in model.named_parameters()}
        optimizer.step()
    plan = model.tensor_plan
    return SplitRun(
        run=Run(gradients=gradients, losses=tuple(losses)),
        share=plan.num_split / plan.num_elements,
        whole=tuple(f"{each.module}: {each.text}" for each in plan.whole),
    )


def _whole(parameter: torch.Tensor) -> Any:
    """Return the whole gradient of a parameter of which this rank may have a part."""
    split, gradient = split_of(parameter), parameter.grad
    if split is None or gradient is None:
        return array_of(gradient)
    assert split.peers is not None
    return array_of(split.joined(split.peers.all_gather(gradient.contiguous())))
