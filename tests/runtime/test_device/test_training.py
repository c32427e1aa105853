# SPDX-License-Identifier: Apache-2.0
"""Training on the test device gives what training on the CPU gives, also with DDP and FSDP2."""

import pytest
import test_device
import torch
import torch.distributed as dist
from device_process import on_device
from torch import nn
from torch.distributed.fsdp import fully_shard

NEVER = test_device.StaleUses(device=0, pinned=0)


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(10, 8), nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4)
    )


def batch():
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randint(10, (16,), generator=generator),
        torch.randint(4, (16,), generator=generator),
    )


def train(model, x, y, optimizer=torch.optim.Adam):
    steps = optimizer(model.parameters(), lr=0.01)
    for _ in range(3):
        steps.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        steps.step()
    return [parameter.detach() for parameter in model.parameters()]


def assert_close(expected, parameters):
    for one, other in zip(expected, parameters, strict=True):
        torch.testing.assert_close(one, other.cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_deferred", [True, False])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@on_device
def test_one_process(optimizer, is_deferred):
    test_device.set_deferred(is_deferred)
    optimizer = getattr(torch.optim, optimizer)
    x, y = batch()

    assert_close(
        train(net(), x, y, optimizer),
        train(net().to("testdev"), x.to("testdev"), y.to("testdev"), optimizer),
    )
    assert NEVER == test_device.take_stale_uses()


@on_device
def test_a_side_stream_computes_the_same():
    """Autograd runs each operator's backward on the stream of its forward."""
    x, y = batch()
    side = torch.Stream(device="testdev")
    model, on_device_x, on_device_y = net().to("testdev"), x.to("testdev"), y.to("testdev")
    side.wait_stream(torch.testdev.current_stream())
    with side:
        parameters = train(model, on_device_x, on_device_y)
    side.synchronize()

    assert_close(train(net(), x, y), parameters)


def with_ddp(rank, size):
    x, y = (part[rank::size].to("testdev") for part in batch())
    parameters = train(nn.parallel.DistributedDataParallel(net().to("testdev")), x, y)
    return [parameter.cpu() for parameter in parameters], test_device.take_stale_uses()


def with_fsdp(rank, size):
    torch.testdev.set_device(rank)
    x, y = (part[rank::size].to("testdev") for part in batch())
    model = net().to("testdev")
    mesh = dist.init_device_mesh("testdev", (size,))
    for layer in (model[1], model[4], model):
        fully_shard(layer, mesh=mesh)
    parameters = train(model, x, y)
    return [parameter.to_local().cpu() for parameter in parameters], test_device.take_stale_uses()


def test_ddp(device_processes):
    expected = train(net(), *batch())
    for parameters, stale in device_processes.run_ranks(with_ddp, size=2):
        assert_close(expected, parameters)
        assert NEVER == stale


def test_fsdp(device_processes):
    expected = train(net(), *batch())
    ranks = device_processes.run_ranks(with_fsdp, size=2)
    shards = [rank[0] for rank in ranks]

    assert_close(expected, [torch.cat(parts) for parts in zip(*shards, strict=True)])
    assert [NEVER, NEVER] == [rank[1] for rank in ranks]
