# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with the names and arguments of SMDDP 1.0 to 1.3.

    import smdist.dataparallel.torch.distributed as dist
    from smdist.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP

    dist.init_process_group()
    model = DDP(model)

The process group is torch's own, on the backend "smdist". Functions that are missing here,
such as new_group(), are in torch.distributed and work beside this module. Unlike in SMDDP,
every function takes `group=`, and all_reduce() also takes torch's reduce operations.
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
_OTHER_WAYS_TO_MEET: Final = {"store", "init_method"}
_START = "Start the script with DataParallel(...) or torchrun"


class ReduceOp:
    """Reduce operations of all_reduce(): torch's operations under SMDDP's names."""

    AVERAGE = _torch.ReduceOp.AVG
    SUM = _torch.ReduceOp.SUM
    MIN = _torch.ReduceOp.MIN
    MAX = _torch.ReduceOp.MAX


def is_available() -> bool:
    """Return whether this process was started as a rank of a job.

    The function returns True if RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are all set, as
    smdist's launcher and torchrun do. A script that was started by hand gets False and should
    not use this module.
    """
    return read_rank_config().is_in_world


def init_process_group(backend: str | None = None, **options: Any) -> None:
    """Join the other ranks; call this before everything else.

    SMDDP ignored all arguments. Here each argument has its effect or is refused.

    Args:
        backend: None, "smdist" or "smddp", which mean the same backend, or a map that uses
            it for the CPU: "cpu:smdist,cuda:nccl".
        options: Arguments of torch's init_process_group: timeout, store, rank, ...

    Raises:
        OptionError: The backend is another one, or this process is not a rank
            (see is_available()) and no store or init_method tells where to meet.
    """
    backend = backend or NAME
    named = {part.rpartition(":")[2].lower() for part in backend.split(",")}
    require(
        bool(named & _OURS),
        what=f"backend is {backend!r}",
        why="the groups of smdist.dataparallel.torch.distributed are on the backend smdist",
        hint='Leave it out; with CUDA tensors give "cpu:smdist,cuda:nccl"',
    )
    require(
        is_available() or bool(_OTHER_WAYS_TO_MEET & options.keys()),
        what="init_process_group() was called in a process that is no rank",
        why="RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not all set",
        hint=f"{_START}, or call it only where is_available()",
    )
    _torch.init_process_group(backend, **options)


def get_local_rank() -> int:
    """Return this rank's number among the ranks of its host, from 0.

    Raises:
        OptionError: LOCAL_RANK is not set.
    """
    local_rank = read_rank_config().local_rank
    require(
        local_rank is not None,
        what="this process has no local rank",
        why="LOCAL_RANK is not set",
        hint=_START,
    )
    assert local_rank is not None
    return local_rank


def broadcast(
    tensor: torch.Tensor,
    src: int = 0,
    group: _torch.ProcessGroup | None = None,
    async_op: bool = False,
) -> _torch.Work | None:
    """Broadcast the tensor of rank `src` to the group; torch's function with a default source."""
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
    """Send part i of the input to rank i; torch's function with SMDDP's argument names.

    A part is a number of rows of the first dimension. All parts are equal unless the sizes
    are given.
    """
    work: _torch.Work | None = _torch.all_to_all_single(
        output_t, input_t, output_split_sizes, input_split_sizes, group, async_op
    )
    return work
