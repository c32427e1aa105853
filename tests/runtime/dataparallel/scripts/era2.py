# SPDX-License-Identifier: Apache-2.0
"""A script of SMDDP 1.4 and later, its import renamed."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import smdist.dataparallel.torch.torch_smddp

world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
torch.manual_seed(0)
rows, labels = torch.randn(48, 20), torch.randint(0, 3, (48,))
model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 3))
if world > 1:
    dist.init_process_group(backend="smddp")
    assert dist.get_backend() == "smddp"
    model = DDP(model, gradient_as_bucket_view=True, bucket_cap_mb=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
total = torch.zeros(1)
for batch, wanted in zip(rows.split(12), labels.split(12), strict=True):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch[rank::world]), wanted[rank::world])
    loss.backward()
    optimizer.step()
    total += loss.detach() / 4
if world > 1:
    dist.reduce(total, dst=0, op=dist.ReduceOp.AVG)
if rank == 0:
    weights = getattr(model, "module", model).state_dict()
    torch.save({"weights": weights, "loss": total.item()}, sys.argv[1])
if world > 1:
    dist.destroy_process_group()
