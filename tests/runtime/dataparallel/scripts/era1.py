# SPDX-License-Identifier: Apache-2.0
"""A script of SMDDP 1.0 to 1.3, its imports renamed."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import smdist.dataparallel.torch.distributed as dist
from smdist.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP

ROWS = 48
if dist.is_available():
    dist.init_process_group()
world, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_available() else (1, 0)

torch.manual_seed(0)
rows = TensorDataset(torch.randn(ROWS, 20), torch.randint(0, 3, (ROWS,)))
sampler = DistributedSampler(rows, num_replicas=world, rank=rank, shuffle=False)
loader = DataLoader(rows, batch_size=max(12 // world, 1), sampler=sampler)
model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 3))
if dist.is_available():
    model = DDP(model, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
total = torch.zeros(1)
for batch, labels in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch), labels)
    loss.backward()
    optimizer.step()
    total += loss.detach() / len(loader)
if dist.is_available():
    assert dist.get_local_rank() == rank
    dist.all_reduce(total, op=dist.ReduceOp.AVERAGE)
    dist.barrier()
if rank == 0:
    weights = getattr(model, "module", model).state_dict()
    torch.save({"weights": weights, "loss": total.item()}, sys.argv[1])
