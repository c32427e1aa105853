# SPDX-License-Identifier: Apache-2.0
"""DDP and FSDP2 by two levels train as one process on the CPU does."""

from functools import partial

import accelerator
import torch
import torch.distributed as dist
from small_training import batch, net, shard_of_batch, train
from test_device import host_communicators
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

LIMITS = {"staging_slot_bytes": 4096, "staging_slots": 3, "two_level_bytes": 512}
HOSTS = "aabb"
WIDTH = 95  # lengths that two ranks do not divide
STEPS = 3  # of train()


POLICIES = ((None, accelerator.ROUNDING), (torch.bfloat16, 0.02))  # dtype, distance


def with_ddp(rank, size):
    model = nn.parallel.DistributedDataParallel(net(WIDTH).to(accelerator.NAME), bucket_cap_mb=0.01)
    parameters = train(model, *shard_of_batch(rank, size, accelerator.NAME))
    return [each.cpu() for each in parameters]


def with_fsdp(rank, size, dtype):
    model = net(WIDTH).to(accelerator.NAME)
    mesh = dist.init_device_mesh(accelerator.NAME, (size,))
    policy = MixedPrecisionPolicy(param_dtype=dtype)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    parameters = train(model, *shard_of_batch(rank, size, accelerator.NAME))
    return [each.full_tensor().cpu() for each in parameters]


def train_each(rank, size):
    """Train by DDP, then by FSDP2 in each dtype; return parameters, and what went by two levels."""
    accelerator.set_seed(rank)
    trainings = [with_ddp, *(partial(with_fsdp, dtype=dtype) for dtype, _ in POLICIES)]
    found, are_used = [], []
    for training in trainings:
        before = counts()
        found.append(training(rank, size))
        used = [after - earlier for after, earlier in zip(counts(), before, strict=True)]
        are_used.append(accelerator.IS_GPU or min(used) >= STEPS)
    return found, are_used, accelerator.take_stale_uses()


def counts():
    """Return how many reduce-scatters and all-gathers the stand-in has had; NCCL does not count."""
    operations = [0, 0] if accelerator.IS_GPU else host_communicators.num_operations()
    return sum(operations[0::2]), sum(operations[1::2])


def test_training(device_processes):
    expected = train(net(WIDTH), *batch())
    ranks = device_processes.run_ranks(
        train_each, size=len(HOSTS), staging=LIMITS, hosts=HOSTS, deadline=120
    )
    distances = [accelerator.ROUNDING, *(distance for _, distance in POLICIES)]
    for trained, are_used, stale in ranks:
        for parameters, distance in zip(trained, distances, strict=True):
            torch.testing.assert_close(parameters, expected, rtol=0, atol=distance)
        assert all(are_used)
        assert accelerator.NEVER == stale
