# SPDX-License-Identifier: Apache-2.0
"""Requests of SageMaker's SDK v2 for AWS's model parallel library v1.

    mp_parameters                             the parameters; scripts get them as an argument too
    sagemaker_mpi_enabled                     allowed beside them
    sagemaker_mpi_num_of_processes_per_host   ranks on each host; default 1
    sagemaker_mpi_custom_mpi_options          refused: there is no mpirun

Version 2 of the library, which torch_distributed starts, is refused. Names: SDK 2.257.7.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.contract import KEY, DataParallel, ModelParallel
from sagemaker_dist.contract.sdk_flags import FLAGS, is_flag_on
from sagemaker_dist.contract.smp import model_parallel_options, runtime_faults, smp_warnings
from sagemaker_dist.errors import OptionError
from smdist.config import RuntimeConfig

PARAMETERS: Final = "mp_parameters"
PROCESSES: Final = "sagemaker_mpi_num_of_processes_per_host"
MPI_OPTIONS: Final = "sagemaker_mpi_custom_mpi_options"
_TORCH: Final = FLAGS["torch_distributed"]
_MPI: Final = "sagemaker_mpi_enabled"
_WHERE: Final = f"the hyperparameter {PARAMETERS}"


def asks_to_split(config: RuntimeConfig) -> bool:
    """Tell whether the job has parameters of SMP v1."""
    return bool(config.hyperparameters.get(PARAMETERS))


def split_request(config: RuntimeConfig) -> tuple[ModelParallel, tuple[str, ...]]:
    """Convert valid parameters to ModelParallel, and list those without an effect here."""
    parameters = _parameters(config)
    assert parameters is not None
    engine = DataParallel(processes_per_host=_processes(config))
    model = ModelParallel(**model_parallel_options(parameters, where=_WHERE), engine=engine)
    return model, tuple(smp_warnings(parameters))


def split_request_faults(config: RuntimeConfig) -> Iterator[OptionError]:
    """Yield the faults of the parameters: those that this image cannot serve."""
    if not asks_to_split(config):
        return
    parameters, value = _parameters(config), config.hyperparameters[PARAMETERS]
    if config.document:
        yield OptionError(
            f"the hyperparameters {KEY} and {PARAMETERS} are both there",
            "each asks for ranks, and a job has one launcher",
            f"Keep {KEY}, which distribution=ModelParallel() writes, and leave {PARAMETERS} out",
        )
    elif is_flag_on(config.framework_parameters.get(_TORCH)):
        yield OptionError(
            f"{_WHERE} is beside {_TORCH}, which is SMP v2",
            "this image has what SMP v1 has, and no tensors are split in it",
            "Use ModelParallel(sharding='full') for shards alone, or an image of AWS",
        )
    elif parameters is None:
        yield OptionError(f"{_WHERE} is {value!r}", "it is no JSON object", "Pass one, or none")
    else:
        yield from runtime_faults(parameters, where=_WHERE)
    yield from _mpi_faults(config)


def _mpi_faults(config: RuntimeConfig) -> Iterator[OptionError]:
    options = config.framework_parameters.get(MPI_OPTIONS)
    if options:
        yield OptionError(
            f"the hyperparameter {MPI_OPTIONS} is {options!r}",
            "this image starts ranks with torchrun and uses no MPI",
            "Leave custom_mpi_options out",
        )
    processes = _processes(config)
    if processes is not None and not (type(processes) is int and 1 <= processes <= 1024):
        yield OptionError(
            f"the hyperparameter {PROCESSES} is {processes!r}",
            "a host starts between 1 and 1024 ranks",
            "Pass an integer from 1 to 1024",
        )


def _processes(config: RuntimeConfig) -> Any:
    """Return the ranks on each host: with mpi the given number or 1, else None for one per GPU."""
    is_mpi = is_flag_on(config.framework_parameters.get(_MPI))
    return config.framework_parameters.get(PROCESSES) or (1 if is_mpi else None)


def _parameters(config: RuntimeConfig) -> Mapping[str, Any] | None:
    value = config.hyperparameters[PARAMETERS]
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return found if isinstance(found, Mapping) else None
