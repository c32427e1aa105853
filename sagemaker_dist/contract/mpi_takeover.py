# SPDX-License-Identifier: Apache-2.0
"""Conversion of a request for mpirun to ranks that the sagemaker-dist launcher starts without MPI.

    {"mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "-x NCCL_DEBUG=INFO"}}

The launcher starts as many ranks as mpirun would, one per host by default, with Open MPI's
variables (OMPI_COMM_WORLD_RANK and others). A program that calls MPI itself does not run so. AWS's
launcher also starts the ranks of SMDDP with mpirun, so that SMDDP may have its options, too:

    {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": "-x A=1"}}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.contract.aws_distributions import MPI, SMDDP
from sagemaker_dist.contract.mpi_options import (
    OPTIONS,
    PROCESSES,
    option_faults,
    process_faults,
)
from sagemaker_dist.errors import OptionError, subscripted

MPI_KEY: Final = "mpi"
_SMDDP_PATH: Final = ("distribution", "smdistributed", "dataparallel", OPTIONS)


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


def take_smddp_over(section: Mapping[str, Any]) -> SMDDP | None:
    """Return the request for SMDDP with options of mpirun; None if it has no such options.

    Args:
        section: Value of the key "dataparallel" below "smdistributed", without faults.
    """
    text = section.get(OPTIONS)
    return SMDDP(custom_mpi_options=text) if text else None


def smddp_faults(section: Mapping[str, Any]) -> Iterator[OptionError]:
    """Yield the faults of options of mpirun in a request for SMDDP.

    Args:
        section: Value of the key "dataparallel" below "smdistributed".
    """
    yield from option_faults(section.get(OPTIONS), subscripted(_SMDDP_PATH), _SMDDP_PATH)
