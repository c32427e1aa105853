# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters by which SageMaker's SDK requests ranks from a launcher.

The sagemaker-dist launcher also reads these hyperparameters. The source for their names is
estimator.py of SageMaker Python SDK 2.257.7, read 2026-11-21.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FLAGS: Final = {  # for torch ranks, by the key of `distribution=`
    "torch_distributed": "sagemaker_torch_distributed_enabled",
    "pytorchddp": "sagemaker_pytorch_ddp_enabled",
    "smdistributed.dataparallel": "sagemaker_distributed_dataparallel_enabled",
}
STRATEGY_FLAGS: Final = {  # for TensorFlow's own strategies, by the key of `distribution=`
    "parameter_server": "sagemaker_parameter_server_enabled",
    "multi_worker_mirrored_strategy": "sagemaker_multi_worker_mirrored_strategy_enabled",
}
SERVED_FLAGS: Final = {**FLAGS, **STRATEGY_FLAGS}
MPI_FLAG: Final = "sagemaker_mpi_enabled"  # the launcher starts these ranks without MPI
MPI_PROCESSES_KEY: Final = "sagemaker_mpi_num_of_processes_per_host"
MPI_OPTIONS_KEY: Final = "sagemaker_mpi_custom_mpi_options"
SMDDP_MPI_OPTIONS_KEY: Final = "sagemaker_distributed_dataparallel_custom_mpi_options"
OTHER_FLAGS: Final = (  # flags of other launchers
    MPI_FLAG,
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "mp_parameters",
)
GROUPS_KEY: Final = "sagemaker_distribution_instance_groups"
INSTANCE_KEY: Final = "sagemaker_instance_type"
_ON: Final = ("true", "1")
_OFF: Final = ("false", "0", "none", "null", "")


def is_flag_on(value: object) -> bool | None:
    """Return whether the value of a flag means true, such as True, 1, "true" or "True".

    Returns None if the value is neither true nor false.
    """
    text = str(value).strip().strip('"').lower()
    return text in _ON if text in (*_ON, *_OFF) else None


def flagged_framework(hyperparameters: Mapping[str, Any]) -> str | None:
    """Return "torch" or "tensorflow", the framework for which `hyperparameters` request ranks.

    A request is a flag such as sagemaker_torch_distributed_enabled. Returns None if no such flag is
    on, or only the flag of SMDDP, which supports both frameworks.
    """
    on = [key for key, flag in SERVED_FLAGS.items() if is_flag_on(hyperparameters.get(flag))]
    if any(key in STRATEGY_FLAGS for key in on):
        return "tensorflow"
    return "torch" if any(not key.startswith("smdistributed") for key in on) else None


def requests_ranks(hyperparameters: Mapping[str, Any]) -> bool:
    """Return whether any flag that requests ranks from the sagemaker-dist launcher is on.

    Such a flag is a hyperparameter like sagemaker_torch_distributed_enabled.
    """
    flags = (*SERVED_FLAGS.values(), MPI_FLAG)
    return any(is_flag_on(hyperparameters.get(flag)) for flag in flags)


def flagged_ranks(hyperparameters: Mapping[str, Any]) -> int | None:
    """Return the number of ranks of each host that the flags in `hyperparameters` request.

    Returns 1 if no flag is on, and None for one rank per GPU. The number of a request for mpirun
    may be text.
    """
    if not requests_ranks(hyperparameters):
        return 1
    if not is_flag_on(hyperparameters.get(MPI_FLAG)):
        return None
    text = str(hyperparameters.get(MPI_PROCESSES_KEY) or 1).strip('"')
    return int(text) if text.isdecimal() and int(text) else 1
