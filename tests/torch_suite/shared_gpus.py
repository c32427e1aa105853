# SPDX-License-Identifier: Apache-2.0
"""Lets the ranks of a test share GPUs, though the suite wants one for each rank.

Rank 2 of a machine with one GPU, which calls its device cuda:2, gets cuda:0. What a test asks of
torch beyond that, such as memory that one GPU alone has, may then fail, with every backend: so a
backend has to pass what Gloo passes in the same way.
"""

import torch
from device_mapping import DeviceMapping
from torch.testing._internal.distributed import distributed_test


def share(ranks: int) -> None:
    """Let this process see as many GPUs as there are ranks."""
    count = torch.cuda.device_count()
    if count == 0 or count >= ranks:
        return

    def mapped(number: int | None) -> torch.device:
        return torch.device(
            "cuda", torch.cuda.current_device() if number is None else number % count
        )

    def index_of(device: object) -> int:
        if isinstance(device, int):
            return device % count if device >= 0 else device
        return mapped(torch.device(device).index).index

    set_device, use_device = torch.cuda.set_device, torch.cuda.device
    torch.cuda.set_device = lambda device: set_device(index_of(device))
    torch.cuda.device = lambda device: use_device(index_of(device))
    torch.cuda.device_count = lambda: ranks
    distributed_test.init_multigpu_helper = lambda size, _: {
        rank: [rank % count] for rank in range(size)
    }
    DeviceMapping(mapped).__enter__()
