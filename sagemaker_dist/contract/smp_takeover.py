# SPDX-License-Identifier: Apache-2.0
"""Conversion of requests for AWS's model parallel library v1 (SMP v1) to the smdist runtime.

    {"smdistributed": {"modelparallel": {"enabled": True, "parameters": {...}}},
     "mpi": {"enabled": True, "processes_per_host": 2}}

In the sagemaker-dist image, the smdist runtime splits the model in place of AWS's library. The
sagemaker-dist launcher starts as many ranks as mpi would, one per host by default. Version 2 of
the library, which is requested with torch_distributed, is only in AWS's images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.contract.aws_distributions import is_pipeline_variable
from sagemaker_dist.contract.data_parallel import DataParallel
from sagemaker_dist.contract.distribution_keys import AWS, LAUNCH_KEYS, MODEL, MPI_OPTIONS
from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.contract.smp import model_parallel_options, runtime_faults
from sagemaker_dist.errors import OptionError, subscripted, within

_PROCESSES: Final = "processes_per_host"
_PATH: Final = ("distribution", AWS, MODEL, "parameters")
_WHERE: Final = subscripted(_PATH)


def take_over(rest: Mapping[str, Any]) -> ModelParallel | None:
    """Return the `ModelParallel` options that correspond to a request for SMP v1.

    Returns None if the request is not for AWS's model parallel library, or if it has a fault, which
    `takeover_faults` reports.

    Args:
        rest: Keys of `distribution=` that are enabled, with their values.
    """
    if MODEL not in rest.get(AWS, ()) or any(takeover_faults(rest)):
        return None
    processes = (rest["mpi"].get(_PROCESSES) or 1) if "mpi" in rest else None
    return ModelParallel(
        **model_parallel_options(rest[AWS][MODEL]["parameters"], where=_WHERE),
        engine=DataParallel(processes_per_host=processes),
    )


def takeover_faults(rest: Mapping[str, Any]) -> Iterator[OptionError]:
    """Yield the faults that prevent the smdist runtime from running a request for SMP v1.

    Args:
        rest: Keys of `distribution=` that are enabled, with their values.
    """
    launcher = next((key for key in LAUNCH_KEYS if key in rest), None)
    if launcher is not None:
        yield OptionError(
            f"distribution requests SMP v2 ('{AWS}.{MODEL}' with {launcher!r})",
            "the runtime of sagemaker_dist runs only requests for SMP v1",
            "Use ModelParallel(sharding='full') for sharding, or SageMaker's image for SMP v2",
            about=("distribution", launcher),
            kind="unsupported",
        )
        return
    parameters = rest[AWS][MODEL].get("parameters", {})
    if not isinstance(parameters, Mapping):  # a JSON file was already replaced by its content
        why = "it is neither a dict nor the path of a file"
        yield OptionError(
            f"{_WHERE} is {parameters!r}",
            why,
            "Pass a dict of SMP's parameters",
            about=_PATH,
            kind="type",
        )
    else:
        yield from within(runtime_faults(parameters, where=_WHERE), *_PATH)
    yield from _mpi_faults(rest.get("mpi", {}))


def _mpi_faults(section: Mapping[str, Any]) -> Iterator[OptionError]:
    if section.get(MPI_OPTIONS):
        yield OptionError(
            f"distribution['mpi'] has {MPI_OPTIONS}={section[MPI_OPTIONS]!r}",
            "the launcher of sagemaker_dist starts ranks with torchrun and uses no MPI",
            f"Leave {MPI_OPTIONS} out",
            about=("distribution", "mpi", MPI_OPTIONS),
            kind="unsupported",
        )
    if is_pipeline_variable(section.get(_PROCESSES)):
        yield OptionError(
            f"{_PROCESSES} of 'mpi' in distribution is a pipeline variable",
            "sagemaker_dist needs its value already when the pipeline is created",
            "Pass a number",
            about=("distribution", "mpi", _PROCESSES),
            kind="pipeline_variable",
        )
    elif section.get(_PROCESSES) is not None and section[_PROCESSES] > 1024:
        yield OptionError(
            f"distribution['mpi'] has {_PROCESSES}={section[_PROCESSES]}",
            "a host starts between 1 and 1024 ranks",
            "Pass an integer from 1 to 1024",
            about=("distribution", "mpi", _PROCESSES),
        )
