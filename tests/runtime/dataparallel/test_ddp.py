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


def bucket_bytes(rank, size, environment, arguments=(), **options):
    os.environ.update(environment)
    try:
        wrapped = sdp.DistributedDataParallel(model(), *arguments, **options)
    finally:
        for name in environment:
            del os.environ[name]
    sizes = wrapped.bucket_bytes_cap_list or [wrapped.bucket_bytes_cap]
    return [size / MiB for size in sizes], wrapped.gradient_as_bucket_view


def buckets_in_four_ways(rank, size):
    job = {"SMDIST_FUSION_BYTES": str(8 * MiB)}
    return [
        bucket_bytes(rank, size, {}),
        bucket_bytes(rank, size, job),
        bucket_bytes(rank, size, job, fusion_bytes=2 * MiB),
        bucket_bytes(rank, size, job, arguments=(None, None, 0, True, True, None, 3)),
    ]


def test_fusion_bytes_is_the_largest_size_of_buckets(world):
    """The default, the job's value, the call's and torch's argument; first buckets are smaller."""
    ((default, of_job, of_call, torchs),) = world.run(buckets_in_four_ways, size=1)

    assert ([1, 2, 4, 8, 16, 25], True) == default
    assert ([1, 2, 4, 8], True) == of_job
    assert ([1, 2], True) == of_call
    assert ([3], True) == torchs


def buckets_of_a_trained_model(rank, size):
    layers = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(12)])  # 1 MiB each
    wrapped = sdp.DistributedDataParallel(layers, progress_seconds=None)
    for _ in range(3):  # torch orders buckets in the second step and tells their sizes in the third
        wrapped(torch.ones(1, 512)).sum().backward()
    sizes = wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    return [int(each) // MiB for each in sizes.split(",")]


def test_the_buckets_that_are_filled_first_are_small(world):
    assert [[1, 2, 4, 5]] * 2 == world.run(buckets_of_a_trained_model, size=2)


@pytest.mark.parametrize("torchs", ["bucket_cap_mb", "bucket_cap_mb_list"])
def test_two_sizes_for_one_buffer_are_refused(torchs):
    """fusion_bytes together with an argument of torch's."""
    with pytest.raises(OptionError) as caught:
        sdp.DistributedDataParallel(nn.Linear(2, 2), fusion_bytes=MiB, **{torchs: [1]})

    assert (("fusion_bytes",), "conflict") == (caught.value.about, caught.value.kind)


def again(rank, size):
    total = torch.ones(3)
    dist.all_reduce(total)
    return total.sum().item()


def test_a_group_can_be_made_again_after_it_was_destroyed(world):
    """Every call of the world makes a group anew in the same processes."""
    assert [[12.0] * 4] * 5 == [world.run(again) for _ in range(5)]
