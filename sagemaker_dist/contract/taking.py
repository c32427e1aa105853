# SPDX-License-Identifier: Apache-2.0
"""AWS's request for its model parallel library v1, taken over by our runtime where it can be.

    {"smdistributed": {"modelparallel": {"enabled": True, "parameters": {...}}},
     "mpi": {"enabled": True, "processes_per_host": 2}}

Our launcher starts the ranks that mpi would, one per host by default; v2 of the library, which
torch_distributed starts, is in AWS's images alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.contract.opening import is_open
from sagemaker_dist.contract.options import DataParallel
from sagemaker_dist.contract.smp import as_options, our_faults
from sagemaker_dist.contract.spelling import AWS, MODEL, MPI_OPTIONS, STOCK
from sagemaker_dist.errors import OptionError

_PROCESSES: Final = "processes_per_host"
_WHERE: Final = f"distribution[{AWS!r}][{MODEL!r}]['parameters']"


def taken_over(rest: Mapping[str, Any]) -> ModelParallel | None:
    """What the keys of `distribution=` that are on ask for; None where there is a fault."""
    if MODEL not in rest.get(AWS, ()) or any(taking_faults(rest)):
        return None
    processes = (rest["mpi"].get(_PROCESSES) or 1) if "mpi" in rest else None
    return ModelParallel(
        **as_options(rest[AWS][MODEL]["parameters"], where=_WHERE),
        engine=DataParallel(processes_per_host=processes),
    )


def taking_faults(rest: Mapping[str, Any]) -> Iterator[OptionError]:
    """Why our runtime does not take over what AWS's library is asked for."""
    launcher = next((key for key in STOCK if key in rest), None)
    if launcher is not None:
        yield OptionError(
            f"distribution asks for '{AWS}.{MODEL}' beside {launcher!r}, which is SMP v2",
            "the runtime of sagemaker_dist has what SMP v1 has, and no tensors are split in it",
            "Use ModelParallel(sharding='full') for shards alone, or SageMaker's image",
        )
        return
    parameters = rest[AWS][MODEL].get("parameters", {})
    if not isinstance(parameters, Mapping):  # of a path, whoever gathers facts has read the file
        why = "it is neither a dict nor the path of a file"
        yield OptionError(f"{_WHERE} is {parameters!r}", why, "Pass a dict of SMP's parameters")
    else:
        yield from our_faults(parameters, where=_WHERE)
    yield from _mpi_faults(rest.get("mpi", {}))


def _mpi_faults(section: Mapping[str, Any]) -> Iterator[OptionError]:
    if section.get(MPI_OPTIONS):
        yield OptionError(
            f"distribution['mpi'] has {MPI_OPTIONS}={section[MPI_OPTIONS]!r}",
            "the launcher of sagemaker_dist starts ranks with torchrun and uses no MPI",
            f"Leave {MPI_OPTIONS} out",
        )
    if is_open(section.get(_PROCESSES)):
        yield OptionError(
            f"{_PROCESSES} of 'mpi' in distribution is known to a pipeline alone",
            "the launcher of sagemaker_dist is asked when the pipeline is made",
            "Pass a number",
        )
    elif section.get(_PROCESSES) is not None and section[_PROCESSES] > 1024:
        yield OptionError(
            f"distribution['mpi'] has {_PROCESSES}={section[_PROCESSES]}",
            "a host starts between 1 and 1024 ranks",
            "Pass an integer from 1 to 1024",
        )
