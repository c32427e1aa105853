# SPDX-License-Identifier: Apache-2.0
"""Initialization of torch.distributed by smp.init, if the script has not done it."""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from sagemaker_dist.errors import OptionError
from smdist.config import RankConfig
from smdist.modelparallel.torch.accelerator import accelerator_module

_OURS: Final = "smdist"
_VARIABLES: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # names that torch reads


def start(config: RankConfig) -> bool:
    """Initialize torch.distributed if the script has not done it.

    Several ranks connect at the address that the launcher or torchrun set. A process without a
    launcher is a world of one rank. With GPUs, NCCL sends CUDA tensors where torch has it.

    Args:
        config: Configuration of this rank, from its environment.

    Returns:
        True if this call initialized torch.distributed.

    Raises:
        OptionError: This process is one of several ranks, but the environment lacks variables with
            the address.
    """
    if dist.is_initialized():
        return False
    _check_complete(config)
    import smdist.dataparallel.torch  # noqa: F401  registers the backend; imported late, since it loads a library

    backend = _backend()
    if config.is_in_world:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    return True


def _check_complete(config: RankConfig) -> None:
    """Check that RANK or WORLD_SIZE are not set without the other variables of torchrun.

    Raises:
        OptionError: RANK or WORLD_SIZE is set, and another variable is missing.
    """
    given = set(config.world_variables)
    missing = [name for name in _VARIABLES if name not in given]
    if missing and given & {"RANK", "WORLD_SIZE"}:
        raise OptionError(
            f"the environment has the variables {', '.join(sorted(given))}, but not"
            f" {', '.join(missing)}",
            "ranks need all of these variables to connect",
            "Start ranks with distribution= or torchrun, or unset RANK and WORLD_SIZE to run alone",
            about=missing[0],
            kind="missing",
        )


def take_device(config: RankConfig) -> None:
    """Make the accelerator with the number `local_rank`, such as a GPU, the current device.

    Without an accelerator, or without a launcher that sets this number, nothing is done.

    Raises:
        OptionError: The host has fewer devices than ranks.
    """
    if accelerator_module() is None or config.local_rank is None:
        return
    count = torch.accelerator.device_count()
    if config.local_rank >= count:
        raise OptionError(
            f"rank {config.local_rank} of {config.host_label} has no GPU of its own",
            f"the host has {count} GPUs, and each rank uses one",
            f"Start at most {count} ranks per host, or hide the GPUs with CUDA_VISIBLE_DEVICES=''",
            about="LOCAL_RANK",
            kind="missing_gpu",
        )
    torch.accelerator.set_device_index(config.local_rank)


def _backend() -> str:
    """Return the backend for torch.distributed.

    The backend is "smdist" for CPU tensors and "nccl" for CUDA tensors; without NCCL, "smdist" for
    all tensors.
    """
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    return f"cpu:{_OURS},cuda:nccl" if has_nccl else _OURS
