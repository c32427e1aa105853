# SPDX-License-Identifier: Apache-2.0
"""Start of torch.distributed for smp.init, unless the script has started it."""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from sagemaker_dist.errors import OptionError
from smdist.config import RankConfig

_OURS: Final = "smdist"
_VARIABLES: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # names that torch reads


def start(config: RankConfig) -> bool:
    """Initialize torch.distributed unless the script did; return True if this call did it.

    Several ranks meet at the address that the launcher or torchrun set. A process that was started
    alone is a world of its own. If there is a GPU, its tensors travel by NCCL.

    Raises:
        OptionError: This process is one of several, but the environment lacks the address.
    """
    if dist.is_initialized():
        return False
    _check_complete(config)
    import smdist.dataparallel.torch  # noqa: F401  needs the compiled adapter; registers

    backend = _backend()
    if config.is_in_world:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    return True


def _check_complete(config: RankConfig) -> None:
    given = set(config.world_variables)
    missing = [name for name in _VARIABLES if name not in given]
    if missing and given & {"RANK", "WORLD_SIZE"}:
        raise OptionError(
            f"the environment has {', '.join(sorted(given))} and not {', '.join(missing)}",
            "ranks of a world need all of them to meet",
            "Start ranks with distribution= or torchrun, or unset RANK and WORLD_SIZE to run alone",
        )


def take_device(config: RankConfig) -> None:
    """Make this rank's GPU the current one, if the launcher numbered ranks and there are GPUs.

    Raises:
        OptionError: The host has fewer GPUs than ranks.
    """
    if not torch.cuda.is_available() or config.local_rank is None:
        return
    count = torch.cuda.device_count()
    if config.local_rank >= count:
        raise OptionError(
            f"rank {config.local_rank} of {config.host_label} has no GPU of its own",
            f"the host has {count}, and each rank takes one",
            f"Start at most {count} ranks per host, or hide the GPUs with CUDA_VISIBLE_DEVICES=''",
        )
    torch.cuda.set_device(config.local_rank)


def _backend() -> str:
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    return f"cpu:{_OURS},cuda:nccl" if has_nccl else _OURS
