# SPDX-License-Identifier: Apache-2.0
"""Script that all-reduces until it is killed, and ignores SIGTERM."""

import signal

import torch
import torch.distributed as dist

import smdist.dataparallel.torch  # noqa: F401  registers the backend

signal.signal(signal.SIGTERM, signal.SIG_IGN)
dist.init_process_group("smdist")
tensor = torch.ones(100_000)
dist.all_reduce(tensor)
print("all ranks are at work", flush=True)
while True:
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
