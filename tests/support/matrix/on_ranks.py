# SPDX-License-Identifier: Apache-2.0
"""Work of each rank that trains a case's model on a pipeline."""

from __future__ import annotations

from typing import Any

import torch

import smdist.modelparallel.torch as smp
from matrix.case import Case, batches, loss_of, optimizer_of, plan_of, specimen_of
from matrix.one_process import Run, array_of
from sagemaker_dist.contract import ModelParallel
from smdist.modelparallel.torch.program.batch import Batch


def trained(rank: int, size: int, case: Case, steps: int) -> Run:
    """Train a case; return the gradients of the parameters that this rank holds."""
    torch.set_num_threads(1)
    smp.init(ModelParallel(pipeline_parallel_degree=case.ranks))
    try:
        return _trained(case, steps)
    finally:
        smp.end()


def _trained(case: Case, steps: int) -> Run:
    specimen = specimen_of(case.model)
    plan = plan_of(case, specimen)
    replica = smp.dp_rank()
    model = smp.parallelize(specimen.model, plan, sharding=case.sharding)
    optimizer = smp.DistributedOptimizer(optimizer_of(model.parameters()))
    gradients: dict[str, Any] = {}
    losses = []
    for batch in batches(specimen, steps):
        optimizer.zero_grad()
        own = float(model.train_step(_part(batch, case, replica), loss_of).reduce_mean())
        losses.append(sum(smp.allgather(own, smp.DP_GROUP)) / case.replicas)
        gradients = gradients or _gradients(model)
        optimizer.step()
    return Run(gradients=gradients, losses=tuple(losses))


def _gradients(model: Any) -> dict[str, Any]:
    """Return the gradients by the first name of each parameter in the whole model."""
    graph = model.captured.graph
    first = {alias: each.name for each in graph.parameters for alias in (each.name, *each.aliases)}
    return {first[name]: _whole(each.grad) for name, each in model.named_parameters()}


def _part(batch: Any, case: Case, replica: int) -> Any:
    """Return the batch's part for one replica; the first replica has the first microbatches."""
    return Batch.of(batch).microbatch(case.replicas, replica)


def _whole(gradient: Any) -> Any:
    """Gather a sharded gradient on all replicas."""
    return array_of(gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient)
