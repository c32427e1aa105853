# SPDX-License-Identifier: Apache-2.0
"""Conversion of requests for AWS's model parallel library v1 (SMP v1) to smdist's options.

SageMaker's SDK v2 sends such a request in these hyperparameters, named as in SDK 2.257.7:

    mp_parameters                             SMP's parameters, as a JSON object; the script
                                              receives them as an argument too
    sagemaker_mpi_enabled                     accepted
    sagemaker_mpi_num_of_processes_per_host   number of ranks on each host; default 1
    sagemaker_mpi_custom_mpi_options          see `mpi_request`

A request for version 2 of the library is refused. It has mp_parameters together with the
hyperparameter that enables torch_distributed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.contract import KEY, DataParallel, ModelParallel
from sagemaker_dist.contract.sdk_flags import FLAGS, is_flag_on
from sagemaker_dist.contract.smp import model_parallel_options, runtime_faults, smp_warnings
from sagemaker_dist.errors import OptionError, within
from smdist.config import RuntimeConfig
from smdist.launch.mpi_request import requested_processes

PARAMETERS: Final = "mp_parameters"
_TORCH: Final = FLAGS["torch_distributed"]
_WHERE: Final = f"the hyperparameter {PARAMETERS}"


def requests_split(config: RuntimeConfig) -> bool:
    """Return True if the job has parameters of SMP v1 in the hyperparameter mp_parameters."""
    return bool(config.hyperparameters.get(PARAMETERS))


def split_request(config: RuntimeConfig) -> tuple[ModelParallel, tuple[str, ...]]:
    """Return the model parallel options for SMP v1's parameters, and warnings.

    A warning is a sentence about a parameter that has no effect here. The parameters must be valid;
    `split_request_faults` checks them.
    """
    parameters = _parameters(config)
    assert parameters is not None
    engine = DataParallel(processes_per_host=requested_processes(config))
    model = ModelParallel(**model_parallel_options(parameters, where=_WHERE), engine=engine)
    return model, tuple(smp_warnings(parameters))


def split_request_faults(config: RuntimeConfig) -> Iterator[OptionError]:
    """Yield the faults of SMP v1's parameters; none if the job has no such parameters."""
    if not requests_split(config):
        return
    parameters, value = _parameters(config), config.hyperparameters[PARAMETERS]
    if config.document:
        yield OptionError(
            f"the job has both hyperparameters {KEY} and {PARAMETERS}",
            "each of them requests ranks, and a job has one launcher",
            f"Keep {KEY}, which distribution=ModelParallel() writes, and remove {PARAMETERS}",
            about=PARAMETERS,
            kind="conflict",
        )
    elif is_flag_on(config.framework_parameters.get(_TORCH)):
        yield OptionError(
            f"the job has {_WHERE} and {_TORCH}, which together request SMP v2",
            "this image runs only requests for SMP v1",
            "Pass ModelParallel(sharding='full') for sharded data parallelism, or"
            " ModelParallel(tensor_parallel_degree=...) for tensor parallelism",
            about=PARAMETERS,
            kind="conflict",
        )
    elif parameters is None:
        yield OptionError(
            f"{_WHERE} is {value!r}",
            "it is not a JSON object",
            "Pass SMP's parameters as a JSON object, or leave the hyperparameter out",
            about=PARAMETERS,
            kind="type",
        )
    else:
        yield from within(runtime_faults(parameters, where=_WHERE), PARAMETERS)


def _parameters(config: RuntimeConfig) -> Mapping[str, Any] | None:
    value = config.hyperparameters[PARAMETERS]
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return found if isinstance(found, Mapping) else None
