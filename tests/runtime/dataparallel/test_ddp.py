# SPDX-License-Identifier: Apache-2.0
"""torch's DistributedDataParallel on smdist trains what one process trains."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

import smdist.dataparallel.torch as sdp
from sagemaker_dist.contract import MiB
from sagemaker_dist.errors import OptionError

STEPS, BATCH = 8, 12


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 3))


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(STEPS, BATCH, 20, generator=generator)


def train(rank, size, wrapper):
    wrapped = {"torch": TorchDDP, "ours": sdp.DistributedDataParallel}[wrapper](model().eval())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    for batch in data():
        optimizer.zero_grad()
        wrapped(batch[rank::size]).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in wrapped.module.parameters()]


@pytest.mark.parametrize("wrapper", ["torch", "ours"])
def test_ddp_trains_what_one_process_trains(world, wrapper):
    """Four ranks agree bitwise with each other, and within rounding with one process."""
    ranks = world.run(train, wrapper)
    (alone,) = world.run(train, wrapper, size=1)

    for rank in ranks:
        assert all(map(torch.equal, ranks[0], rank))
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(alone, rank, strict=True))


def bucket_bytes(rank, size, environment, **options):
    os.environ.update(environment)
    try:
        wrapped = sdp.DistributedDataParallel(model(), **options)
    finally:
        for name in environment:
            del os.environ[name]
    return wrapped.bucket_bytes_cap, wrapped.gradient_as_bucket_view


def buckets_in_three_ways(rank, size):
    job = {"SMDIST_FUSION_BYTES": str(8 * MiB)}
    return [
        bucket_bytes(rank, size, {}),
        bucket_bytes(rank, size, job),
        bucket_bytes(rank, size, job, fusion_bytes=2 * MiB),
    ]


def test_fusion_bytes_is_the_bucket_size(world):
    """The default, what the job was given, what the call gives."""
    ((default, of_job, of_call),) = world.run(buckets_in_three_ways, size=1)

    assert (25 * MiB, True) == default
    assert (8 * MiB, True) == of_job
    assert (2 * MiB, True) == of_call


def test_two_sizes_for_one_buffer_are_refused():
    """fusion_bytes together with bucket_cap_mb."""
    with pytest.raises(OptionError) as caught:
        sdp.DistributedDataParallel(nn.Linear(2, 2), fusion_bytes=MiB, bucket_cap_mb=1)

    assert (("fusion_bytes",), "conflict") == (caught.value.about, caught.value.kind)
    assert (
        "both fusion_bytes=1048576 and bucket_cap_mb were passed: both set the size of the same"
        " buckets. Pass only fusion_bytes."
    ) == str(caught.value)


def again(rank, size):
    total = torch.ones(3)
    dist.all_reduce(total)
    return total.sum().item()


def test_a_group_can_be_made_again_after_it_was_destroyed(world):
    """Every call of the world makes a group anew in the same processes."""
    assert [[12.0] * 4] * 5 == [world.run(again) for _ in range(5)]
