# SPDX-License-Identifier: Apache-2.0
"""Module `horovod.common.util`: Horovod's questions about how it was built.

Its other functions are about Horovod's own extensions and are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from smdist.dataparallel import library_facts

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "mpi_built",
    "nccl_built",
    "rocm_built",
]


def _answer(fact: Callable[[], int]) -> Callable[..., int]:
    def built(verbose: bool = False) -> int:  # noqa: ARG001  Horovod's argument
        return fact()

    built.__name__, built.__doc__ = fact.__name__, fact.__doc__
    return built


def cuda_built(verbose: bool = False) -> bool:  # noqa: ARG001  Horovod's argument
    """Return whether horovod.torch was imported, and torch was built for CUDA."""
    if "horovod.torch" not in sys.modules:
        return False
    from smdist.dataparallel.torch.horovod.build_facts import cuda_built as of_torch

    return of_torch()


ccl_built = _answer(library_facts.ccl_built)
ddl_built = _answer(library_facts.ddl_built)
gloo_built = _answer(library_facts.gloo_built)
mpi_built = _answer(library_facts.mpi_built)
nccl_built = _answer(library_facts.nccl_built)
rocm_built = _answer(library_facts.rocm_built)
