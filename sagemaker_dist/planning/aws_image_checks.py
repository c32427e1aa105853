# SPDX-License-Identifier: Apache-2.0
"""Checks of jobs in SageMaker's own images for requests that SageMaker's SDK silently ignores.

The request is not changed. If SageMaker cannot run the request, it is refused here. If SageMaker
would run only a part of the request, a warning is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.catalog import Instance, training_instances
from sagemaker_dist.contract.distribution_keys import AWS, DATA, GROUPS, MODEL, MPI_OPTIONS
from sagemaker_dist.contract.smp import SDK_PLACEMENTS, smp_faults, smp_world_faults
from sagemaker_dist.errors import OptionError, subscripted, within
from sagemaker_dist.planning.distribution_support import SUPPORT, TENSORFLOW, active_keys
from sagemaker_dist.planning.job import Job

_LAUNCHERS: Final = (
    "torch_distributed",
    "pytorchddp",
    "pytorchxla",
    "mpi",
    "parameter_server",
    "multi_worker_mirrored_strategy",
)
# Last PyTorch with SMP v1: SMP 1.15.0 (AWS's release notes, read 2026-11-21).
_LAST_SMP_V1: Final = (2, 0)
# First TensorFlow with MultiWorkerMirroredStrategy in SageMaker SDK 2.257.7.
_FIRST_MWMS: Final = (2, 9)
_MWMS: Final = "multi_worker_mirrored_strategy"
_MODEL: Final = f"{AWS}.{MODEL}"
_DATA: Final = f"{AWS}.{DATA}"


def aws_image_faults(job: Job) -> Iterator[OptionError]:
    """Yield a fault for each request that SageMaker's SDK would ignore or its image cannot run."""
    keys = active_keys(job.distribution)
    for key in keys:
        if SUPPORT[key].in_aws_image(job.kind) == "refused":
            yield OptionError(
                f"distribution requests {key!r}",
                f"SageMaker's {job.kind} does not support it",
                f"Leave {key!r} out",
                about=("distribution", *key.split(".")),
                kind="unsupported",
            )
    launchers = [key for key in keys if key in _LAUNCHERS]
    yield from _launcher_faults(launchers, keys)
    yield from _group_faults(job, keys)
    yield from _version_faults(job, keys)
    gpu_only = [_DATA, _MODEL, *(["pytorchddp"] if job.kind == "PyTorch" else [])]
    for key in gpu_only:
        if key in keys and not job.names_image:
            yield from _gpu_faults(job, key)
    if _MODEL in keys:
        yield from _model_faults(job, launchers)


def _launcher_faults(launchers: list[str], keys: list[str]) -> Iterator[OptionError]:
    others = set(launchers) - {"torch_distributed"}  # torchrun starts SMDDP's ranks as well
    if len(launchers) > 1 or (_DATA in keys and others):
        named = [*launchers, *([_DATA] if _DATA in keys else [])]
        yield OptionError(
            f"distribution requests {' and '.join(map(repr, named))}",
            "a job has one launcher, and SageMaker's SDK would ignore the others",
            "Keep one of them",
            about="distribution",
            kind="conflict",
        )


def _group_faults(job: Job, keys: list[str]) -> Iterator[OptionError]:
    if keys == [GROUPS]:
        yield OptionError(
            "distribution has instance_groups",
            "no other key of distribution is enabled, so no launcher would start ranks",
            "Enable a key such as 'mpi', or leave distribution out",
            about=("distribution", GROUPS),
            kind="missing",
        )
    elif (
        GROUPS in keys and not _sends_groups(job, keys) and not _strategy_dropping_groups(job, keys)
    ):
        rest = " and ".join(repr(key) for key in keys if key != GROUPS)
        yield OptionError(
            f"distribution has instance_groups with {rest}",
            "SageMaker's SDK sends groups only with 'mpi' or 'smdistributed.dataparallel'",
            "Leave instance_groups out, or request one of these two keys instead",
            about=("distribution", GROUPS),
            kind="no_effect",
        )


def _version_faults(job: Job, keys: list[str]) -> Iterator[OptionError]:
    version = job.framework_version
    if _MWMS in keys and job.kind == TENSORFLOW and _is_older(version, _FIRST_MWMS):
        yield OptionError(
            f"distribution requests {_MWMS!r} and framework_version is {version!r}",
            "SageMaker supports it only from TensorFlow 2.9 on",
            "Pass a framework_version of at least 2.9",
            about="framework_version",
            kind="unsupported",
        )


def aws_image_warnings(job: Job) -> Iterator[str]:
    """Yield a warning for each part of `distribution=` that will have no effect on SageMaker."""
    keys = active_keys(job.distribution)
    for key in keys:
        if SUPPORT[key].in_aws_image(job.kind) == "ignored":
            yield (
                f"distribution requests {key!r}, which SageMaker's {job.kind} ignores:"
                " every host runs one process."
            )
    if _MODEL in keys and "mpi" in keys and _is_newer(job.framework_version, _LAST_SMP_V1):
        yield (
            f"distribution requests {_MODEL!r} with 'mpi', which is SMP v1: SageMaker's images"
            f" of PyTorch {job.framework_version} do not have it; the last images with it are those"
            f" of PyTorch {_LAST_SMP_V1[0]}.{_LAST_SMP_V1[1]}."
        )
    options = _part(job, "pytorchddp").get(MPI_OPTIONS)
    if job.kind == "HuggingFace" and "pytorchddp" in keys and options:
        yield f"SageMaker's HuggingFace ignores the custom_mpi_options {options!r}."
    if GROUPS in keys and _strategy_dropping_groups(job, keys):
        yield (
            "distribution has instance_groups: SageMaker's SDK does not send them with"
            f" {_strategy_dropping_groups(job, keys)!r}, so the ranks of each group train"
            " separately from those of the others."
        )


def _part(job: Job, key: str) -> Mapping[str, Any]:
    part: Mapping[str, Any] = job.distribution.rest.get(key, {})
    return part


def _sends_groups(job: Job, keys: list[str]) -> bool:
    """Return whether SageMaker's SDK sends the instance groups of the distribution to the job.

    `keys` are the enabled keys of `distribution=`. Source: SageMaker SDK 2.257.7,
    _distribution_configuration.
    """
    is_smddp = _DATA in keys or (job.kind == "PyTorch" and "pytorchddp" in keys)
    return "mpi" in keys or is_smddp


def _strategy_dropping_groups(job: Job, keys: list[str]) -> str | None:
    """Return the key that makes SageMaker's SDK silently ignore instance groups, or None.

    `keys` are the enabled keys of `distribution=`.
    """
    if job.kind == TENSORFLOW or any(key.startswith(AWS) for key in keys):
        return None
    return next((key for key in ("torch_distributed", "pytorchddp") if key in keys), None)


def _is_older(version: Any, first: tuple[int, int]) -> bool:
    return version is not None and not _is_newer(version, (first[0], first[1] - 1))


def _is_newer(version: Any, last: tuple[int, int]) -> bool:
    parts = re.match(r"(\d+)\.(\d+)", str(version))
    return parts is not None and (int(parts[1]), int(parts[2])) > last


def _gpu_faults(job: Job, key: str) -> Iterator[OptionError]:
    name, _ = job.training_hosts
    instance = training_instances().get(str(name))
    if instance is not None and not instance.has_gpu:
        yield OptionError(
            f"distribution requests {key!r} on {instance.name}",
            "AWS's library runs on GPUs, and this instance type has none",
            "Use an instance type with GPUs: sagemaker-dist instances list --accelerated",
            about=("distribution", *key.split(".")),
            kind="missing_gpu",
        )


def _model_faults(job: Job, launchers: list[str]) -> Iterator[OptionError]:
    section: Mapping[str, Any] = job.distribution.rest[AWS][MODEL]
    path = "distribution", AWS, MODEL, "parameters"
    where = subscripted(path)
    version = {"mpi": 1, "torch_distributed": 2}.get(launchers[0] if launchers else "")
    if version is None:
        yield OptionError(
            f"distribution requests {_MODEL!r}",
            "no key that starts its ranks is enabled",
            "Add 'mpi': {'enabled': True, 'processes_per_host': ...} for SMP v1,"
            " or 'torch_distributed': {'enabled': True} for SMP v2",
            about="distribution",
            kind="missing",
        )
    if version == 2 and job.kind != "PyTorch":
        yield OptionError(
            f"distribution requests {_MODEL!r} with 'torch_distributed'",
            f"the estimator class {job.kind} ignores SMP if 'torch_distributed' is enabled",
            "Use the estimator class PyTorch for SMP v2, or the key 'mpi' for SMP v1",
            about="distribution",
            kind="no_effect",
        )
    parameters = section.get("parameters", {})
    if not isinstance(parameters, Mapping):  # a JSON file was already replaced by its content
        why = "it is neither a dict nor the path of a file"
        yield OptionError(
            f"{where} is {parameters!r}",
            why,
            "Pass a dict of SMP's parameters",
            about=path,
            kind="type",
        )
        return
    faults = list(smp_faults(parameters, version=version, where=where))
    faults += _placement_faults(where, parameters) if not faults else ()
    yield from within(faults, *path)
    if not faults and version is not None:
        yield from _world_faults(job, parameters, version)


def _placement_faults(where: str, parameters: Mapping[str, Any]) -> Iterator[OptionError]:
    strategy = parameters.get("placement_strategy", "cluster")
    if not isinstance(strategy, str) or strategy in SDK_PLACEMENTS.values():
        return
    same = SDK_PLACEMENTS.get(strategy)
    call = f"smp.init({{'placement_strategy': {strategy!r}}})"
    in_script = f"Leave it out, and call {call} in the script"
    yield OptionError(
        f"{where} has placement_strategy={strategy!r}",
        "SageMaker's SDK accepts only 'cluster' and 'spread'",
        f"Pass {same!r}, which means the same order" if same else in_script,
        about="placement_strategy",
        kind="unsupported",
    )


def _rank_faults(processes: Any, instance: Instance | None) -> Iterator[OptionError]:
    gpus = instance.num_accelerators if instance and instance.has_gpu else None
    if gpus is not None and type(processes) is int and processes > gpus:
        yield OptionError(
            f"processes_per_host is {processes}",
            f"SMP runs one rank per GPU, and the instance type has {gpus}",
            f"Pass {gpus}",
            about=("distribution", "mpi", "processes_per_host"),
        )


def _world_faults(job: Job, parameters: Mapping[str, Any], version: int) -> Iterator[OptionError]:
    name, count = job.training_hosts
    instance = training_instances().get(str(name))
    processes = instance.num_accelerators if instance and instance.has_gpu else None
    if version == 1:
        given = job.distribution.rest["mpi"].get("processes_per_host")
        yield from _rank_faults(given, instance)
        processes = job.distribution.rest["mpi"].get("processes_per_host") or 1
    faults = smp_world_faults(
        parameters,
        version=version,
        num_hosts=count if type(count) is int else None,
        processes_per_host=processes if type(processes) is int else None,
    )
    yield from within(faults, "distribution", AWS, MODEL, "parameters")
