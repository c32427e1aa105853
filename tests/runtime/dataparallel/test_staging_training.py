# SPDX-License-Identifier: Apache-2.0
"""DDP and FSDP2 on the tensors of a device train as one process on the CPU does."""

import accelerator
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 4)
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
    return (part[rank::size].to(accelerator.NAME) for part in batch())


def with_ddp(rank, size, bucket_mb):
    accelerator.set_seed(rank)
    model = nn.parallel.DistributedDataParallel(
        net().to(accelerator.NAME), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=bucket_mb < 1
    )
    parameters = train(model, *shard_of_batch(rank, size))
    return [parameter.cpu() for parameter in parameters], accelerator.take_stale_uses()


@pytest.mark.parametrize("bucket_mb", [0.01, 25])
def test_ddp(device_processes, bucket_mb):
    expected = train(net(), *batch())
    for parameters, stale in device_processes.run_ranks(with_ddp, bucket_mb, size=2, staging=SLOTS):
        torch.testing.assert_close(parameters, expected, rtol=0, atol=accelerator.ROUNDING)
        assert accelerator.NEVER == stale


def with_fsdp(rank, size, dtype):
    accelerator.set_seed(rank)
    torch.accelerator.set_device_index(rank % torch.accelerator.device_count())
    model = net().to(accelerator.NAME)
    mesh = dist.init_device_mesh(accelerator.NAME, (size,))
    policy = MixedPrecisionPolicy(param_dtype=dtype)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    parameters = train(model, *shard_of_batch(rank, size))
    return [each.full_tensor().cpu() for each in parameters], accelerator.take_stale_uses()


@pytest.mark.parametrize(
    ("dtype", "distance"), [(None, accelerator.ROUNDING), (torch.bfloat16, 0.02)]
)
def test_fsdp(device_processes, dtype, distance):
    expected = train(net(), *batch())
    for parameters, stale in device_processes.run_ranks(with_fsdp, dtype, size=2, staging=SLOTS):
        torch.testing.assert_close(parameters, expected, rtol=0, atol=distance)
        assert accelerator.NEVER == stale
