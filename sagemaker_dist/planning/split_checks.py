# SPDX-License-Identifier: Apache-2.0
"""Checks of a split model against the job's ranks, batch and saved plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sagemaker_dist.catalog import training_instances
from sagemaker_dist.contract import Distribution, ModelParallel
from sagemaker_dist.contract.keras_limits import keras_faults
from sagemaker_dist.contract.model_parallel_ranks import split_faults
from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.job import Job, PlanFile

_TENSORFLOW: Final = "TensorFlow"
_TENSOR: Final = "tensor_parallel_degree"


def ranks_per_host(distribution: Distribution, kind: Any) -> int | None:
    """Return the number of ranks that the launcher will start on each host.

    The result is processes_per_host if it is given; otherwise the number of GPUs, but at least 1.
    It is None if the number of GPUs is unknown, as for a job on this machine.

    Args:
        distribution: Distribution of the job.
        kind: Instance type of the hosts.
    """
    engine = distribution.engine
    if engine is not None and engine.processes_per_host is not None:
        return engine.processes_per_host
    instance = training_instances().get(str(kind))
    if instance is None:
        return None
    return max(1, instance.num_accelerators) if instance.has_gpu else 1


def model_faults(job: Job) -> Iterator[OptionError]:
    """Yield the faults of a split model's degrees, batch sizes and saved plan.

    The number of ranks is checked only if it is known.
    """
    model, (kind, hosts) = job.distribution.model, job.training_hosts
    if model is None:
        return
    if job.kind == _TENSORFLOW:
        yield from keras_faults(model)
    if type(hosts) is not int or hosts < 1:
        hosts = None
    ranks = ranks_per_host(job.distribution, kind)
    size = hosts * ranks if hosts and ranks else None
    if size is not None:
        yield from split_faults(model, world_size=size, num_hosts=hosts)
    if job.plan is not None:
        yield from _plan_faults(model, job.plan, size)


def _plan_faults(model: ModelParallel, plan: PlanFile, size: int | None) -> Iterator[OptionError]:
    if plan.problem:
        hint = "Save a plan there with smp.plan(...).save(path), or correct the path"
        if plan.kind == "version":
            hint = "Update sagemaker-dist to the release that wrote it, or make a new plan"
        yield OptionError(
            f"plan is {plan.path!r}",
            f"{plan.problem} {plan.where}",
            hint,
            about="plan",
            kind=plan.kind,
        )
        return
    given = {
        "pipeline_parallel_degree": model.pipeline_parallel_degree,
        "num_microbatches": model.microbatches,
    }
    for name, number in given.items():
        planned = plan.numbers[name]
        if isinstance(number, int) and number != planned:
            option = name.removeprefix("num_")
            yield OptionError(
                f"{option} is {number} together with plan={plan.path!r}",
                f"the plan was made for {planned}",
                f"Leave {option} out, or make a new plan",
                about=option,
                kind="conflict",
            )
    yield from _size_faults(model, plan, size)


def _size_faults(model: ModelParallel, plan: PlanFile, size: int | None) -> Iterator[OptionError]:
    stages, replicas = (plan.numbers[f"{each}_parallel_degree"] for each in ("pipeline", "data"))
    # with whole layers in the plan, the option may still split them
    tensor = plan.numbers.get(_TENSOR, 1)
    each_replica = stages * (model.tensor_parallel_degree if tensor == 1 else tensor)
    ranks = each_replica * replicas
    if tensor > 1 and model.tensor_parallel_degree not in (1, tensor):
        yield OptionError(
            f"{_TENSOR} is {model.tensor_parallel_degree} together with plan={plan.path!r}",
            f"the plan was made for {tensor}",
            f"Leave {_TENSOR} out, or make a new plan",
            about=_TENSOR,
            kind="conflict",
        )
    if size is not None and ranks != size:
        yield OptionError(
            f"plan {plan.path!r} is for {ranks} ranks"
            f" ({each_replica} ranks per replica x {replicas} replicas)",
            f"the job has {size} ranks",
            f"Start {ranks} ranks, or make a plan for {size}",
            about="plan",
            kind="difference",
        )
    batch, each = model.global_batch_size, plan.numbers["batch_size"]
    if batch is not None and batch != replicas * each:
        yield OptionError(
            f"global_batch_size is {batch} together with plan={plan.path!r}",
            f"the plan was made for {replicas * each}: {each} for each of {replicas} replicas",
            "Leave global_batch_size out, or make a new plan",
            about="global_batch_size",
            kind="conflict",
        )


def describe_split(model: ModelParallel, world_size: int | None) -> dict[str, str]:
    """Return texts that describe how ranks and batch are divided, for the output of a command.

    The keys are "split", and "batch" and "steps" if the global batch size is known. `world_size` is
    the number of ranks of the job, None if unknown.
    """
    degree = model.pipeline_parallel_degree
    if not isinstance(degree, int):
        return {"split": "number of stages chosen by the planner", **_epoch(model)}
    stages = _count(degree, "stage")
    if world_size is None or world_size % degree:
        return {"split": stages, **_epoch(model)}
    replicas = world_size // degree
    split = f"{stages} x {_count(replicas, 'replica')} = {_count(world_size, 'rank')}"
    return {"split": split, **_batch(model, replicas), **_epoch(model)}


def _batch(model: ModelParallel, replicas: int) -> dict[str, str]:
    batch, number = model.global_batch_size, model.microbatches
    if batch is None or batch % replicas:
        return {}
    each = batch // replicas
    text = f"{batch} = {_count(replicas, 'replica')} x {each}"
    if isinstance(number, int) and each % number == 0:
        text += f", each in {_count(number, 'microbatch', 'microbatches')} of {each // number}"
    return {"batch": text}


def _epoch(model: ModelParallel) -> dict[str, str]:
    batch = model.global_batch_size
    if batch is None:
        return {}
    return {"steps": f"1 per {batch} samples: {model.iterations(10 * batch)} for {10 * batch}"}


def _count(number: int, what: str, several: str = "") -> str:
    return f"{number} {what}" if number == 1 else f"{number} {several or what + 's'}"
