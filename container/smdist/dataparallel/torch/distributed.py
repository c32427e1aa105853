# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with the names and arguments of SMDDP 1.0 to 1.3.

    import smdist.dataparallel.torch.distributed as dist
    from smdist.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP

    dist.init_process_group()
    model = DDP(model)

The process group is one of torch.distributed, on the backend "smdist". Functions that are
missing here, such as new_group(), can be used from torch.distributed. Unlike in SMDDP, every
function accepts `group=`, and all_reduce() also accepts torch's reduce operations.
Source: SageMaker's documentation of SMDDP, PyTorch API.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as _torch
from torch.distributed import (
    all_gather,
    all_reduce,
    barrier,
    get_rank,
    get_world_size,
    group,
    is_initialized,
)

from sagemaker_dist.errors import require
from smdist.config import read_rank_config
from smdist.dataparallel.torch import torch_smddp  # also registers "smddp"
from smdist.dataparallel.torch.backend import NAME

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_initialized",
]

_OURS: Final = {NAME, torch_smddp.NAME}
_EXPLICIT_RENDEZVOUS: Final = {"store", "init_method"}
_START = "Start the job with distribution=DataParallel(...), or the script with torchrun"


class ReduceOp:
    """Reduce operations of all_reduce(), under SMDDP's names; the values are torch's."""

    AVERAGE = _torch.ReduceOp.AVG
    SUM = _torch.ReduceOp.SUM
    MIN = _torch.ReduceOp.MIN
    MAX = _torch.ReduceOp.MAX


def is_available() -> bool:
    """Return True if this process was started as a rank of a job.

    That is so if RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are all set, as by smdist's
    launcher and torchrun. A script that is started by hand gets False and should not use this
    module.
    """
    return read_rank_config().is_in_world


def init_process_group(backend: str | None = None, **options: Any) -> None:
    """Connect this rank to all other ranks; call this before all other functions.

    SMDDP ignored all arguments; here they have their effect.

    Args:
        backend: None, "smdist" or "smddp", which mean the same backend, or one backend for each
            device: "cpu:smdist,cuda:nccl".
        options: Arguments of torch's init_process_group: timeout, store, rank, ...

    Raises:
        OptionError: The backend does not include smdist, or this process is not a rank
            (see is_available()) and neither `store` nor `init_method` was passed.
    """
    backend = backend or NAME
    named = {part.rpartition(":")[2].lower() for part in backend.split(",")}
    require(
        bool(named & _OURS),
        what=f"backend is {backend!r}",
        why="process groups of smdist.dataparallel.torch.distributed use the backend smdist",
        hint="Leave backend out: smdist takes CPU tensors and CUDA tensors",
        about="backend",
    )
    require(
        is_available() or bool(_EXPLICIT_RENDEZVOUS & options.keys()),
        what="init_process_group() was called in a process that is not a rank of a job",
        why="RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not all set",
        hint=f"{_START}, or call it only if is_available() returns True",
        about="RANK",
        kind="missing",
    )
    _torch.init_process_group(backend, **options)


def get_local_rank() -> int:
    """Return this rank's number on its host, from 0.

    Raises:
        OptionError: LOCAL_RANK is not set.
    """
    local_rank = read_rank_config().local_rank
    require(
        local_rank is not None,
        what="this process has no local rank",
        why="the environment variable LOCAL_RANK is not set",
        hint=_START,
        about="LOCAL_RANK",
        kind="missing",
    )
    assert local_rank is not None
    return local_rank


def broadcast(
    tensor: torch.Tensor,
    src: int = 0,
    group: _torch.ProcessGroup | None = None,
    async_op: bool = False,
) -> _torch.Work | None:
    """Send the tensor of rank `src` to all ranks of the group, in place.

    This is torch's function, with rank 0 as the default of `src`. With `async_op` it returns a
    work handle, otherwise None.
    """
    work: _torch.Work | None = _torch.broadcast(tensor, src, group=group, async_op=async_op)
    return work


def all_to_all_single(
    output_t: torch.Tensor,
    input_t: torch.Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: _torch.ProcessGroup | None = None,
    async_op: bool = False,
) -> _torch.Work | None:
    """Send part i of `input_t` to rank i, and receive the parts of all ranks in `output_t`.

    This is torch's function, with SMDDP's names of the arguments. The tensors are divided along
    dimension 0, into parts of `input_split_sizes` and `output_split_sizes` rows, or into equal
    parts without them. With `async_op` it returns a work handle, otherwise None.
    """
    work: _torch.Work | None = _torch.all_to_all_single(
        output_t, input_t, output_split_sizes, input_split_sizes, group, async_op
    )
    return work
