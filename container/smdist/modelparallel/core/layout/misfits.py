# SPDX-License-Identifier: Apache-2.0
"""Errors of searches without a result: what is in the way, and what would fit."""

from __future__ import annotations

from collections.abc import Iterable

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.layout.layer_model import LayerModel
from smdist.modelparallel.core.layout.machine_speed import Machine
from smdist.modelparallel.core.layout.prediction import LayoutMisfit
from smdist.modelparallel.core.layout.training_needs import TrainingNeeds
from smdist.modelparallel.core.plan.number_format import number, size
from smdist.modelparallel.core.plan_errors import PlanError, PlanMemoryError


def nothing_fits(
    model: LayerModel, machine: Machine, needs: TrainingNeeds, misfits: Iterable[LayoutMisfit]
) -> OptionError:
    """Return the error of a search that found no layout.

    Args:
        model: Layers of the model.
        machine: Cluster of the search.
        needs: Batch and fixed options of the training.
        misfits: Layouts that do not fit in memory; empty if no layout was possible at all.
    """
    leanest = min(misfits, key=lambda each: each.memory.total, default=None)
    if leanest is None:
        return _impossible(model, machine, needs)
    need, limit = leanest.memory.total, leanest.limit_bytes
    error = PlanMemoryError(
        f"a rank may use {size(limit)}",
        f"no plan fits: on {number(machine.cluster.size, 'rank')}, the leanest layout of"
        f" {model.name}, {leanest.layout}, needs {size(need)} on its fullest rank, of which"
        f" {size(leanest.memory.state)} is state and {size(leanest.memory.activations)}"
        " activations",
        _remedy(leanest, machine),
        about="device_memory",
    )
    error.least_bytes = round(need)
    return error


def _remedy(leanest: LayoutMisfit, machine: Machine) -> str:
    """Return what would fit: a device with more memory, or more ranks if state is in the way."""
    layout, memory = leanest.layout, leanest.memory
    device = f"Use a device with {size(memory.total)} for each rank"
    fixed = memory.total - memory.state
    split = layout.shard_degree * layout.pipeline * layout.tensor
    if split < machine.cluster.size or fixed >= leanest.limit_bytes:
        return f"{device}, or a shorter sample"
    ranks = -(-int(memory.state * split) // int(leanest.limit_bytes - fixed))
    hosts = -(-ranks // machine.cluster.ranks_per_host)
    return f"{device}, or about {number(hosts, 'host')} of the same type"


def _impossible(model: LayerModel, machine: Machine, needs: TrainingNeeds) -> OptionError:
    """Return the error of a space without any layout, such as for a batch that is too small."""
    ranks = machine.cluster.size
    fixed = [
        f"{name} is {value}"
        for name in ("pipeline", "tensor", "shard_degree", "num_microbatches", "virtual_stages")
        if (value := getattr(needs, name)) is not None
    ]
    wanted = (needs.pipeline or 1) * (needs.virtual_stages or 1)
    if wanted > len(model.layers):
        about = "virtual_stages" if needs.virtual_stages else "pipeline_parallel_degree"
        return PlanError(
            ", ".join(fixed),
            f"this needs {wanted:,} stages, and {model.name} has"
            f" {number(len(model.layers), 'layer')} to place on them",
            "Pass smaller numbers, or leave them out",
            about=about,
            kind="too_large",
        )
    batch = f"global_batch is {needs.global_batch}"
    if needs.global_batch is None:
        batch = f"batch_per_replica is {needs.batch_per_replica}"
    return PlanError(
        ", ".join([batch, *fixed]),
        f"no division of {number(ranks, 'rank')} into replicas, pipelines of at most"
        f" {number(len(model.layers), 'layer')} and tensor groups of at most"
        f" {number(min(model.most_tensor_ranks, machine.cluster.ranks_per_host), 'rank')} divides"
        " this batch",
        f"Pass a batch that is a multiple of {ranks}, or other degrees",
        about="global_batch" if needs.global_batch is not None else "batch_per_replica",
        kind="indivisible",
    )
