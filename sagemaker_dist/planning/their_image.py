# SPDX-License-Identifier: Apache-2.0
"""What SageMaker's SDK lets pass silently where one of its own images runs the job.

Its behaviour stays as it is: what cannot do what was asked is refused here, what
does less than was asked is warned of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.catalog import training_instances
from sagemaker_dist.contract.smp import smp_faults, smp_world_faults
from sagemaker_dist.contract.spelling import AWS, DATA, GROUPS, MODEL
from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.job import Job
from sagemaker_dist.planning.strategies import SUPPORT, asked_keys

_LAUNCHERS: Final = (
    "torch_distributed",
    "pytorchddp",
    "pytorchxla",
    "mpi",
    "parameter_server",
    "multi_worker_mirrored_strategy",
)
_ORDERS: Final = {  # of ranks: SageMaker SDK 2.257.7's name of each, where it has one
    "DPT": "cluster",
    "TPD": "spread",
    **dict.fromkeys(("DTP", "PDT", "PTD", "TDP"), ""),
}
_MODEL: Final = f"{AWS}.{MODEL}"
_DATA: Final = f"{AWS}.{DATA}"


def their_image_faults(job: Job) -> Iterator[OptionError]:
    """What SageMaker's SDK would drop, or its image not run."""
    keys = asked_keys(job.distribution)
    for key in keys:
        if SUPPORT[key].in_their_image(job.kind) == "refused":
            yield OptionError(
                f"distribution asks for {key!r}",
                f"SageMaker's {job.kind} does not start it",
                f"Leave {key!r} out",
            )
    launchers = [key for key in keys if key in _LAUNCHERS]
    if len(launchers) > 1:
        yield OptionError(
            f"distribution asks for {' and '.join(map(repr, launchers))}",
            "a job has one launcher, and SageMaker's SDK drops the others",
            "Keep one",
        )
    if keys == [GROUPS]:
        yield OptionError(
            "distribution names instance_groups",
            "none of its strategies is on",
            "Add one, or leave distribution out",
        )
    for key in (_DATA, _MODEL):
        if key in keys and not job.names_image:
            yield from _gpu_faults(job, key)
    if _MODEL in keys:
        yield from _model_faults(job, launchers)


def their_image_warnings(job: Job) -> Iterator[str]:
    """What does less than was asked, and who says so nowhere."""
    keys = asked_keys(job.distribution)
    for key in keys:
        if SUPPORT[key].in_their_image(job.kind) == "ignored":
            yield (
                f"distribution asks for {key!r}, which SageMaker's {job.kind} ignores:"
                " every host runs one process."
            )
    if GROUPS in keys and "torch_distributed" in keys and _DATA not in keys:
        yield (
            "distribution names instance_groups beside 'torch_distributed': SageMaker's SDK does"
            " not send them, and each group of the job starts a world of its own."
        )


def _gpu_faults(job: Job, key: str) -> Iterator[OptionError]:
    name, _ = job.training_hosts
    instance = training_instances().get(str(name))
    if instance is not None and not instance.has_gpu:
        yield OptionError(
            f"distribution asks for {key!r} on {instance.name}",
            "AWS's library runs on GPUs, and this instance type has none",
            "Take an instance type with GPUs: sagemaker-dist instances list --accelerated",
        )


def _model_faults(job: Job, launchers: list[str]) -> Iterator[OptionError]:
    section: Mapping[str, Any] = job.distribution.rest[AWS][MODEL]
    where = f"distribution[{AWS!r}][{MODEL!r}]['parameters']"
    version = {"mpi": 1, "torch_distributed": 2}.get(launchers[0] if launchers else "")
    if version is None:
        yield OptionError(
            f"distribution asks for {_MODEL!r}",
            "nothing starts its ranks",
            "Add 'mpi': {'enabled': True, 'processes_per_host': ...} for SMP v1,"
            " or 'torch_distributed': {'enabled': True} for SMP v2",
        )
    if version == 2 and job.kind != "PyTorch":
        yield OptionError(
            f"distribution asks for {_MODEL!r} beside 'torch_distributed'",
            f"SageMaker's {job.kind} drops it there",
            "Use PyTorch for SMP v2, or 'mpi' for SMP v1",
        )
    parameters = section.get("parameters", {})
    if not isinstance(parameters, Mapping):
        return  # a path; whoever gathers the facts has read it
    faults = list(smp_faults(parameters, version=version, where=where))
    faults += _placement_faults(where, parameters) if version == 1 else ()
    yield from faults
    if not faults and version is not None:
        yield from _world_faults(job, parameters, version)


def _placement_faults(where: str, parameters: Mapping[str, Any]) -> Iterator[OptionError]:
    asked = parameters.get("placement_strategy", "cluster")
    if asked not in _ORDERS:
        return
    in_script = f"Leave it out; call smp.init({{'placement_strategy': {asked!r}}}) in the script"
    same = f"Pass {_ORDERS[asked]!r}, which is the same"
    yield OptionError(
        f"{where} has placement_strategy={asked!r}",
        "SageMaker's SDK takes 'cluster' and 'spread' alone, though the library knows more",
        same if _ORDERS[asked] else in_script,
    )


def _world_faults(job: Job, parameters: Mapping[str, Any], version: int) -> Iterator[OptionError]:
    name, count = job.training_hosts
    instance = training_instances().get(str(name))
    processes = instance.num_accelerators if instance and instance.has_gpu else None
    if version == 1:
        processes = job.distribution.rest["mpi"].get("processes_per_host") or 1
    yield from smp_world_faults(
        parameters,
        version=version,
        num_hosts=count,
        processes_per_host=processes if type(processes) is int else None,
    )
