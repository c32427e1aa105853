# SPDX-License-Identifier: Apache-2.0
"""Script whose last rank raises while the others wait for it."""

import torch
import torch.distributed as dist

import smdist.dataparallel.torch  # noqa: F401  registers the backend

dist.init_process_group("smdist")
dist.barrier()
if dist.get_rank() == dist.get_world_size() - 1:
    raise ValueError("boom")
dist.all_reduce(torch.ones(10))
