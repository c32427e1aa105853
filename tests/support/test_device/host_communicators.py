# SPDX-License-Identifier: Apache-2.0
"""The stand-in for NCCL among the ranks of an emulated host, and the faults that tests inject.

host_collectives.h says how it works.
"""

import os
import sys
import uuid
from importlib.util import module_from_spec, spec_from_file_location

import torch.distributed as dist

from . import NAME
from .build import HOST_COLLECTIVES

made: list[dist.Backend] = []  # for reduce-scatters and for all-gathers, of each group
faults: dict[str, str] = {}  # "fault", "identity", "create": what goes wrong on this rank


def register(folder: str) -> None:
    """Let groups of smdist find the stand-in. `folder` is for files of all ranks."""
    from smdist.dataparallel.torch.host_communicators import BY_DEVICE, HostCommunicators

    def create(store, rank, size, timeout, device, has_high_priority) -> dist.Backend:
        if rank == 0:
            store.set("memory", f"{folder}/{uuid.uuid4()}")
        if "create" in faults:
            raise RuntimeError(faults["create"])
        path = store.get("memory").decode()
        made.append(module().create(path, rank, size, has_high_priority))
        return made[-1]

    BY_DEVICE[NAME] = HostCommunicators(
        name="the stand-in",
        fault=lambda _: faults.get("fault", ""),
        identity=lambda _: faults.get("identity", str(os.getpid())),
        create=create,
    )


def fail_operation(number: int, backend: int = 0) -> None:
    """Let the number-th operation from now on raise an error, of one of `made`."""
    module().fail_operation(made[backend], number)


def limit_exchanges(number: int, backend: int = 0) -> None:
    """Let so many more operations of one of `made` run, and then none until another call.

    A number of -1 lets all of them run.
    """
    module().limit_exchanges(made[backend], number)


def num_operations() -> list[int]:
    """How many operations each of `made` has had."""
    return [module().num_operations(backend) for backend in made]


def module():
    """The compiled module, loaded once."""
    name = "host_collectives"
    if name not in sys.modules:
        spec = spec_from_file_location(name, HOST_COLLECTIVES)
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
