# SPDX-License-Identifier: Apache-2.0
"""DDP and FSDP2 by two levels train as one process on the CPU does."""

import pytest
import test_device
import torch
import torch.distributed as dist
from test_device import host_communicators
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

LIMITS = {"staging_slot_bytes": 4096, "staging_slots": 3, "two_level_bytes": 512}
NEVER = test_device.StaleUses(device=0, pinned=0)
HOSTS = "aabb"


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 95), nn.Tanh(), nn.Linear(95, 4)
    )


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 32, generator=generator), torch.randn(16, 4, generator=generator)


def train(model, x, y):
    steps = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        steps.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        steps.step()
    return [parameter.detach() for parameter in model.parameters()]


def shard_of_batch(rank, size):
    return (part[rank::size].to("testdev") for part in batch())


def with_ddp(rank, size, _):
    test_device.set_seed(rank)
    model = nn.parallel.DistributedDataParallel(net().to("testdev"), bucket_cap_mb=0.01)
    parameters = train(model, *shard_of_batch(rank, size))
    return [each.cpu() for each in parameters], test_device.take_stale_uses(), used()


def with_fsdp(rank, size, dtype):
    test_device.set_seed(rank)
    model = net().to("testdev")
    mesh = dist.init_device_mesh("testdev", (size,))
    policy = MixedPrecisionPolicy(param_dtype=dtype)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    parameters = train(model, *shard_of_batch(rank, size))
    full = [each.full_tensor().cpu() for each in parameters]
    return full, test_device.take_stale_uses(), used()


def used():
    """Whether every step went by two levels, there and back."""
    return min(host_communicators.num_operations()) >= 3


@pytest.mark.parametrize(
    ("function", "dtype", "distance"),
    [(with_ddp, None, 1e-6), (with_fsdp, None, 1e-6), (with_fsdp, torch.bfloat16, 0.02)],
)
def test_training(device_processes, function, dtype, distance):
    expected = train(net(), *batch())
    ranks = device_processes.run_ranks(
        function, dtype, size=len(HOSTS), staging=LIMITS, hosts=HOSTS
    )
    for parameters, stale, is_used in ranks:
        torch.testing.assert_close(parameters, expected, rtol=0, atol=distance)
        assert NEVER == stale
        assert is_used
