# SPDX-License-Identifier: Apache-2.0
"""Answers to Horovod's questions about how it was built: there is one engine, without libraries.

Scripts ask for example nccl_built() before they use NCCL. All answers are what is true of smdist:
it uses neither MPI, Gloo, NCCL, DDL, oneCCL nor ROCm for collectives with Horovod's names.
"""

from __future__ import annotations


def mpi_enabled() -> bool:
    """Return False: the engine does not use MPI."""
    return False


def mpi_built() -> bool:
    """Return False: the engine does not use MPI."""
    return False


def mpi_threads_supported() -> bool:
    """Return False: there is no MPI."""
    return False


def gloo_enabled() -> bool:
    """Return False: the engine does not use Gloo."""
    return False


def gloo_built() -> bool:
    """Return False: the engine does not use Gloo."""
    return False


def nccl_built() -> int:
    """Return 0: collectives with Horovod's names do not use NCCL."""
    return 0


def ddl_built() -> bool:
    """Return False: the engine does not use IBM's DDL."""
    return False


def ccl_built() -> bool:
    """Return False: the engine does not use Intel's oneCCL."""
    return False


def rocm_built() -> bool:
    """Return False: tensors of AMD's GPUs are not supported."""
    return False
