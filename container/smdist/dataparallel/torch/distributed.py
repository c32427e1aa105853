# SPDX-License-Identifier: Apache-2.0
"""torch.distributed as scripts of SMDDP 1.0 to 1.3 call it.

    import smdist.dataparallel.torch.distributed as dist
    from smdist.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP

    dist.init_process_group()
    model = DDP(model)

The process group is torch's own, on the backend "smdist": what is not here, such
as new_group(), is in torch.distributed and works beside this module. Where SMDDP
had holes we have none: every function takes `group=`, and all_reduce() also takes
torch's reduce operations. Source: SageMaker's documentation of SMDDP, PyTorch API.
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
    """What all_reduce() does with the ranks' tensors: torch's operations under SMDDP's names."""

    AVERAGE = _torch.ReduceOp.AVG
    SUM = _torch.ReduceOp.SUM
    MIN = _torch.ReduceOp.MIN
    MAX = _torch.ReduceOp.MAX


def is_available() -> bool:
    """Whether this process was started as a rank of a job.

    That is: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are all set, as our
    launcher and torchrun do. A script that was started by hand sees False and
    leaves this module alone.
    """
    return read_rank_config().is_in_world


def init_process_group(backend: str | None = None, **options: Any) -> None:
    """Join the other ranks; call it before everything else.

    SMDDP ignored all arguments. Here each works or is refused.

    Args:
        backend: None, "smdist" or "smddp", which are one, or a map that has it
            for the CPU: "cpu:smdist,cuda:nccl".
        options: Those of torch's init_process_group: timeout, store, rank, ...

    Raises:
        OptionError: The backend is another one, or this process is no rank
            (see is_available()) and no store or init_method says where to meet.
    """
    backend = backend or NAME
    named = {part.rpartition(":")[2].lower() for part in backend.split(",")}
    require(
        bool(named & _OURS),
        what=f"backend is {backend!r}",
        why="the groups of smdist.dataparallel.torch.distributed are on the backend smdist",
        mend='Leave it out; with CUDA tensors give "cpu:smdist,cuda:nccl"',
    )
    require(
        is_available() or bool(_OTHER_WAYS_TO_MEET & options.keys()),
        what="init_process_group() was called in a process that is no rank",
        why="RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not all set",
        mend=f"{_START}, or call it only where is_available()",
    )
    _torch.init_process_group(backend, **options)


def get_local_rank() -> int:
    """This rank's number among the ranks of its host, from zero.

    Raises:
        OptionError: LOCAL_RANK is not set.
    """
    local_rank = read_rank_config().local_rank
    require(
        local_rank is not None,
        what="this process has no local rank",
        why="LOCAL_RANK is not set",
        mend=_START,
    )
    assert local_rank is not None
    return local_rank


def broadcast(
    tensor: torch.Tensor,
    src: int = 0,
    group: _torch.ProcessGroup | None = None,
    async_op: bool = False,
) -> _torch.Work | None:
    """Give every rank of the group the tensor of rank `src`; torch's, with a default source."""
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
    """Send part i of the input to rank i; torch's, with SMDDP's argument names.

    The parts are rows of the first dimension; equally many for each rank unless
    the sizes are given.
    """
    work: _torch.Work | None = _torch.all_to_all_single(
        output_t, input_t, output_split_sizes, input_split_sizes, group, async_op
    )
    return work
