# SPDX-License-Identifier: Apache-2.0
"""Script in which rank 3 raises while the others wait for it."""

import torch
import torch.distributed as dist

import smdist.dataparallel.torch  # noqa: F401  registers the backend

dist.init_process_group("smdist")
dist.barrier()
if dist.get_rank() == 3:
    raise ValueError("boom")
dist.all_reduce(torch.ones(10))
