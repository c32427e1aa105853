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

from sagemaker_dist.contract.data_parallel import DataParallel
from sagemaker_dist.contract.distribution_keys import AWS, LAUNCH_KEYS, MODEL
from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.contract.mpi_options import PROCESSES
from sagemaker_dist.contract.mpi_takeover import MPI_KEY, mpi_faults
from sagemaker_dist.contract.smp import model_parallel_options, runtime_faults
from sagemaker_dist.errors import OptionError, subscripted, within

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
    processes = (rest[MPI_KEY].get(PROCESSES) or 1) if MPI_KEY in rest else None
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
    yield from mpi_faults(rest.get(MPI_KEY, {}))
