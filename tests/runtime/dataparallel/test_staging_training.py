# SPDX-License-Identifier: Apache-2.0
"""DDP and FSDP2 on the tensors of a device train as one process on the CPU does."""

import accelerator
import torch
import torch.distributed as dist
from small_training import batch, net, shard_of_batch, train
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}


BUCKETS_MB = (0.01, 25)
POLICIES = ((None, accelerator.ROUNDING), (torch.bfloat16, 0.02))  # dtype, distance


def with_ddp(rank, size):
    """Train with each length of a bucket; return the parameters."""
    accelerator.set_seed(rank)
    found = []
    for bucket_mb in BUCKETS_MB:
        model = nn.parallel.DistributedDataParallel(
            net().to(accelerator.NAME),
            bucket_cap_mb=bucket_mb,
            gradient_as_bucket_view=bucket_mb < 1,
        )
        found.append(train(model, *shard_of_batch(rank, size, accelerator.NAME)))
    return [
        [each.cpu() for each in parameters] for parameters in found
    ], accelerator.take_stale_uses()


def test_ddp(device_processes):
    expected = train(net(), *batch())
    for trained, stale in device_processes.run_ranks(with_ddp, size=2, staging=SLOTS):
        assert len(BUCKETS_MB) == len(trained)
        for parameters in trained:
            torch.testing.assert_close(parameters, expected, rtol=0, atol=accelerator.ROUNDING)
        assert accelerator.NEVER == stale


def with_fsdp(rank, size):
    """Train with parameters of each dtype; return the whole parameters."""
    accelerator.set_seed(rank)
    torch.accelerator.set_device_index(rank % torch.accelerator.device_count())
    mesh = dist.init_device_mesh(accelerator.NAME, (size,))
    found = []
    for dtype, _ in POLICIES:
        model = net().to(accelerator.NAME)
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
        parameters = train(model, *shard_of_batch(rank, size, accelerator.NAME))
        found.append([each.full_tensor().cpu() for each in parameters])
    return found, accelerator.take_stale_uses()


def test_fsdp(device_processes):
    expected = train(net(), *batch())
    for trained, stale in device_processes.run_ranks(with_fsdp, size=2, staging=SLOTS):
        for parameters, (_, distance) in zip(trained, POLICIES, strict=True):
            torch.testing.assert_close(parameters, expected, rtol=0, atol=distance)
        assert accelerator.NEVER == stale
