# SPDX-License-Identifier: Apache-2.0
"""Work of each rank that trains a case's model with split layers."""

from __future__ import annotations

from typing import Any

import torch
from matrix.case import loss_of
from matrix.one_process import Arrays, Run, array_of

import smdist.modelparallel.torch as smp
from sagemaker_dist import ModelParallel
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.tensor_splits import split_of
from tensor_matrix.one_process import SplitRun
from tensor_matrix.tensor_case import MICROBATCHES, TensorCase, optimizer_of, specimen_of, steps_of


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
    if case.sequence:
        smp.init(ModelParallel(**degrees, pipeline="interleaved", sequence_parallel=True))
    else:
        smp.init({**degrees, "ddp": True})
    specimen = specimen_of(case)
    first = _first_names(specimen.model)
    model = smp.DistributedModel(specimen.model, trace_device="cpu")
    optimizer = smp.DistributedOptimizer(optimizer_of(case, model.parameters()))
    gradients: Arrays = {}
    losses = []
    for batch in steps_of(specimen, steps):
        optimizer.zero_grad()
        part = Batch.of(batch).microbatch(smp.rdp_size(), smp.rdp_rank())
        losses.append(float(train_step(model, part).reduce_mean()))
        gradients = gradients or {
            first.get(name, name): _whole(p) for name, p in model.named_parameters()
        }
        optimizer.step()
    plan = model.tensor_plan
    return SplitRun(
        run=Run(gradients=gradients, losses=tuple(losses)),
        share=plan.num_split / plan.num_elements,
        whole=tuple(f"{each.module}: {each.text}" for each in plan.whole),
        sliced=sum(each.is_sliced for each in plan.regions),
    )


def _first_names(model: torch.nn.Module) -> dict[str, str]:
    """Return the first name of each parameter by all of its names."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    named = model.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in named}


def _whole(parameter: torch.Tensor) -> Any:
    """Return the whole gradient of a parameter of which this rank may have a part."""
    split, gradient = split_of(parameter), parameter.grad
    if split is None or gradient is None:
        return array_of(gradient)
    assert split.peers is not None
    return array_of(split.joined(split.peers.all_gather(gradient.contiguous())))
