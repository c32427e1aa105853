# SPDX-License-Identifier: Apache-2.0
"""Sums ones over all ranks, where there are several, and leaves the sum as a model."""

import json
import os
import sys
import time
from pathlib import Path

facts = {
    "argv": sys.argv[1:],
    "cwd": str(Path.cwd()),
    "host": os.environ["SM_CURRENT_HOST"],
    "hyperparameters": json.loads(os.environ["SM_HPS"]),
}
if "RANK" in os.environ:
    import torch
    import torch.distributed as dist

    import smdist.dataparallel.torch  # noqa: F401  # registers the backend

    dist.init_process_group("smdist")
    ones = torch.ones(1000)
    dist.all_reduce(ones)
    facts |= {"sum": ones.mean().item(), "rank": dist.get_rank(), "world": dist.get_world_size()}
    dist.barrier()
    dist.destroy_process_group()
name = f"rank-{facts['rank']}" if "rank" in facts else f"plain-{facts['host'].split('-')[1]}"
model = Path(os.environ["SM_MODEL_DIR"])
(model / f"{name}.json").write_text(json.dumps(facts))

# SageMaker's local mode, where all hosts have one directory, ends them all with the first.
hosts, end = json.loads(os.environ["SM_HOSTS"]), time.monotonic() + 60
while "rank" not in facts and len(list(model.iterdir())) < len(hosts):
    if time.monotonic() > end:
        sys.exit(f"of {hosts} only {list(model.iterdir())} came within 60 s")
    time.sleep(0.1)
