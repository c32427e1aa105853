# SPDX-License-Identifier: Apache-2.0
"""Script whose last rank raises, or leaves with success, while the others wait for it."""

import os
import sys

import torch
import torch.distributed as dist

import smdist.dataparallel.torch  # noqa: F401  registers the backend

dist.init_process_group("smdist")
dist.barrier()
if dist.get_rank() == dist.get_world_size() - 1:
    if "--leave" in sys.argv:
        os._exit(0)
    raise ValueError("boom")
dist.all_reduce(torch.ones(10))
