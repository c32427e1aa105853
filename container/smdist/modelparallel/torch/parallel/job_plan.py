# SPDX-License-Identifier: Apache-2.0
"""Search for the plan of a job before its first step: rank 0 searches, all ranks get the plan."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.layout import Machine
from smdist.modelparallel.core.layout.training_needs import PRECISIONS
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.accelerator import (
    accelerator_of,
    current_device,
    is_off_accelerator,
)
from smdist.modelparallel.torch.parallel.not_searched import not_searched, searches_splits
from smdist.modelparallel.torch.parallel.settings import Settings
from smdist.modelparallel.torch.planning.layout_plan import FixedShards, plan_with_layout
from smdist.modelparallel.torch.planning.local_cluster import cluster_of
from smdist.modelparallel.torch.planning.make_plan import plan as find
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.program.pytree import flatten
from smdist.modelparallel.torch.replicas.replicas import half_dtype
from smdist.modelparallel.torch.session.rank_team import RankTeam, error_text, rank_failure
from smdist.modelparallel.torch.tensor_splits import without_messages

_PLANNER_OPTIONS = (
    "pipeline", "active_microbatches", "virtual_stages", "optimize", "memory_weight",
    "auto_partition", "default_partition", "device_memory", "microbatches",
    "pipeline_parallel_degree",
)  # fmt: skip
# Adam with 16-bit parameters: 4 bytes of master weight, 8 of moments, 4 of gradient in float32.
_WITH_MASTERS = StateBytes(weight=2.0, gradient=2.0, optimizer=16.0)


def planned(model: nn.Module, batch: Batch, settings: Settings) -> Plan:
    """Find a plan on rank 0, and return it on all ranks; all ranks must call this.

    Args:
        model: Model to split into stages.
        batch: Batch of one replica, with which the model is measured.
        settings: Settings of the parallel model.

    Raises:
        OptionError: No plan was found; raised on every rank.
        BaseException: The search failed on rank 0 with this error. Other ranks raise
            DisagreementError.
    """
    team = RankTeam.of(session.current().world)
    return team.run_on_first(lambda: _found(model, batch, settings), _portable, raises_own=True)


def tensor_degree(settings: Settings) -> int:
    """Return the number of ranks over which tensors are split."""
    groups = settings.groups
    return session.current().options.tensor_parallel_degree if groups is None else groups.tp_size


def _portable(error: BaseException) -> OptionError:
    """Convert an error of rank 0's search for a plan to the error that other ranks raise."""
    if isinstance(error, OptionError):
        return error
    return rank_failure(0, "the search for a plan", error_text(error))


def _found(model: nn.Module, batch: Batch, settings: Settings) -> Plan:
    """Search for a plan with the options of the session; only rank 0 calls this.

    Args:
        model: Model to split into stages.
        batch: Batch of one replica, with which the model is measured.
        settings: Settings of the parallel model.
    """
    options = {name: getattr(settings.options, name) for name in _PLANNER_OPTIONS}
    degree = tensor_degree(settings)
    is_one = session.current().size == 1 or degree > 1
    if is_one and options["pipeline_parallel_degree"] == "auto":
        options["pipeline_parallel_degree"] = 1
    cluster = _cluster(model, degree)
    with torch.enable_grad(), without_messages():
        if settings.sharding == "auto":
            shards = _fixed_shards(settings)
            machine = Machine(cluster=cluster, overlaps=torch.accelerator.is_available())
            found = plan_with_layout(
                model, batch, machine, costs=settings.costs, shards=shards,
                state=StateBytes(), **options,
            )  # fmt: skip
            plan, whole = found.plan, found.unsplit
        else:
            state = StateBytes() if settings.converted_dtype is None else _WITH_MASTERS
            if settings.offloads_optimizer and _runs_on_device(model, batch):
                state = replace(state, optimizer=0.0)  # in the host's memory
            options |= {"state": state, "overlaps_sums": settings.sharding == "none"}
            plan, whole = find(model, batch, cluster, costs=settings.costs, **options), ""
    fields = {name: getattr(plan, name) for name in Plan.__dataclass_fields__}
    # without the planning problem, which is not sent to other ranks
    fields["notes"] = (*plan.notes, *not_searched(settings, cluster, degree, whole))
    fields["tensor_parallel_degree"] = max(degree, plan.tensor_parallel_degree)
    portable, forecast = Plan(**fields), plan.forecast
    return replace(portable, forecast=forecast and replace(forecast, basis=portable.basis))


def _runs_on_device(model: nn.Module, batch: Batch) -> bool:
    """Return True if the model's parameters will be on an accelerator.

    They are there already, or move to the accelerator of the batch with which the model is split.
    """
    leaves, _ = flatten(batch.example)
    moves = accelerator_of(leaf for leaf in leaves if isinstance(leaf, Tensor)) is not None
    return moves or not is_off_accelerator(model)


def _fixed_shards(settings: Settings) -> FixedShards:
    """Return what the settings leave of the search for shards.

    With 16 bits, replicas always divide their state: the parameters stay in float32 until FSDP2
    gathers them, so that the model need not be converted before it is known whether it has shards.
    """
    half = half_dtype(bf16=settings.bf16, fp16=settings.fp16)
    return FixedShards(
        shard_degree=settings.shard_degree,
        reduction=settings.gradient_reduction,
        only_shards=half is not None,
        precision=None if half is None else PRECISIONS[str(half).removeprefix("torch.")],
        tensor=None if searches_splits(settings) else 1,  # else it is split, or stays whole
        offload=False if current_device() is None else None,
    )


def _cluster(model: nn.Module, tensor_degree: int) -> Cluster:
    """Return the hosts and devices of this job, for the planner.

    If hosts have different numbers of ranks, all ranks are described as one host. Ranks that share
    tensors are described as one device.

    Args:
        model: Model of the user. If it is on a GPU, the devices are GPUs of the same type.
        tensor_degree: Number of ranks over which tensors are split.
    """
    here = session.current()
    size, local = here.size // tensor_degree, max(1, here.local_size // tensor_degree)
    if size % local:
        return cluster_of(size, model)
    return replace(cluster_of(local, model), num_hosts=size // local)
