# SPDX-License-Identifier: Apache-2.0
"""Request for mpirun, whose ranks this launcher starts without MPI.

SageMaker's SDK v2 sends such a request in these hyperparameters, named as in SDK 2.257.7:

    sagemaker_mpi_enabled                     true
    sagemaker_mpi_num_of_processes_per_host   number of ranks on each host; default 1
    sagemaker_mpi_custom_mpi_options          arguments of mpirun: `sagemaker_dist.contract` has
                                              those that are carried out
    sagemaker_distributed_dataparallel_custom_mpi_options
                                              the same for SMDDP, which AWS starts with mpirun

An estimator of sagemaker_dist sends its own document beside them, which has the number of ranks.
Ranks get Open MPI's variables, by which scripts find their number. Source of the names: Open MPI
4.1, "Environment variables for users".
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sagemaker_dist.contract.mpi_options import (
    MpiOptions,
    option_faults,
    process_faults,
    read_mpi_options,
)
from sagemaker_dist.contract.redaction import masked
from sagemaker_dist.contract.sdk_flags import (
    MPI_FLAG,
    MPI_OPTIONS_KEY,
    MPI_PROCESSES_KEY,
    SMDDP_MPI_OPTIONS_KEY,
    is_flag_on,
)
from sagemaker_dist.errors import OptionError
from smdist.config import RuntimeConfig

_SWITCH: Final = "SMDIST_OPEN_MPI"  # set to 1 for the guards of ranks that mpirun would start
_RANK_VARIABLES: Final = {  # Open MPI's variable -> ours
    "OMPI_COMM_WORLD_RANK": "RANK",
    "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_NODE_RANK": "LOCAL_RANK",
    "OMPI_UNIVERSE_SIZE": "WORLD_SIZE",
}


def requests_mpi(config: RuntimeConfig) -> bool:
    """Return True if the job requests ranks of mpirun."""
    return bool(is_flag_on(config.framework_parameters.get(MPI_FLAG)))


def mpi_request_faults(config: RuntimeConfig) -> Iterator[OptionError]:
    """Yield the faults of the hyperparameters that request ranks of mpirun; none without them."""
    value = config.framework_parameters.get(MPI_FLAG)
    if is_flag_on(value) is None:
        yield OptionError(
            f"the hyperparameter {MPI_FLAG} is {value!r}",
            "it must be true or false",
            "Set it to true or false, or leave it out",
            about=MPI_FLAG,
        )
    name = _options_key(config)
    given = config.framework_parameters.get(name)
    yield from option_faults(given, f"the hyperparameter {name}", (name,))
    if requests_mpi(config):
        given, name = config.framework_parameters.get(MPI_PROCESSES_KEY), MPI_PROCESSES_KEY
        yield from process_faults(given, f"the hyperparameter {name}", (name,))


def requested_processes(config: RuntimeConfig) -> int | None:
    """Return the number of ranks on each host that a request without faults has.

    If no number is requested, return 1 if the job requests mpirun, otherwise None.
    """
    number: Any = config.framework_parameters.get(MPI_PROCESSES_KEY)
    if requests_mpi(config):
        return int(number or 1)
    return None


def with_mpi_variables(config: RuntimeConfig) -> RuntimeConfig:
    """Return `config` with the variables of a request for mpirun in the ranks' environment."""
    variables = dict(_options(config).variables)
    if requests_mpi(config):
        variables[_SWITCH] = "1"
    return replace(config, inherited={**config.inherited, **variables}) if variables else config


def verbose_line(config: RuntimeConfig, command: Sequence[str]) -> str:
    """Return the line that `--verbose` logs: variables of `-x`, with secrets masked, and command.

    Returns "" if the job does not request it.
    """
    options = _options(config)
    if not options.is_verbose:
        return ""
    pairs = (f"{name}={masked(name, value)}" for name, value in options.variables.items())
    return f"the ranks' command is {shlex.join([*pairs, *command])}"


def open_mpi_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return Open MPI's variables by name, for a rank with the variables `environ`.

    Returns {} if the job does not request mpirun.
    """
    if environ.get(_SWITCH) != "1":
        return {}
    return {theirs: environ[ours] for theirs, ours in _RANK_VARIABLES.items() if ours in environ}


def _options(config: RuntimeConfig) -> MpiOptions:
    return read_mpi_options(config.framework_parameters.get(_options_key(config)) or "")


def _options_key(config: RuntimeConfig) -> str:
    """Return the hyperparameter that has the options of mpirun; SMDDP has one of its own."""
    return MPI_OPTIONS_KEY if requests_mpi(config) else SMDDP_MPI_OPTIONS_KEY
