# SPDX-License-Identifier: Apache-2.0
"""Conversion of a request for mpirun to ranks that the sagemaker-dist launcher starts without MPI.

    {"mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "-x NCCL_DEBUG=INFO"}}

The launcher starts as many ranks as mpirun would, one per host by default, with Open MPI's
variables (OMPI_COMM_WORLD_RANK and others). A program that calls MPI itself does not run so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.contract.aws_distributions import MPI
from sagemaker_dist.contract.mpi_options import (
    OPTIONS,
    PROCESSES,
    option_faults,
    process_faults,
)
from sagemaker_dist.errors import OptionError, subscripted

MPI_KEY: Final = "mpi"


def take_mpi_over(rest: Mapping[str, Any]) -> MPI | None:
    """Return the request for mpirun in `rest`, the keys of `distribution=` that are enabled.

    Returns None if the only key is not "mpi", or if the request has a fault, which `mpi_faults`
    reports.
    """
    if [*rest] != [MPI_KEY] or any(mpi_faults(rest[MPI_KEY])):
        return None
    given = {name: rest[MPI_KEY].get(name) for name in (PROCESSES, OPTIONS)}
    return MPI(processes_per_host=given[PROCESSES], custom_mpi_options=given[OPTIONS] or "")


def mpi_faults(section: Mapping[str, Any]) -> Iterator[OptionError]:
    """Yield the faults that prevent the launcher from carrying out a request for mpirun.

    Args:
        section: Value of the key "mpi" of `distribution=`; {} has no faults.
    """
    for name, check in ((OPTIONS, option_faults), (PROCESSES, process_faults)):
        path = "distribution", MPI_KEY, name
        yield from check(section.get(name), subscripted(path), path)
