# SPDX-License-Identifier: Apache-2.0
"""FSDP2 on smdist trains what one process trains."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from training import alone, are_close, batches, loss_of, net, sgd, train


def sharded(**options):
    """Every linear layer is a unit of its own, and the rest is one."""
    model = net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def whole(tensors):
    """The shards of all ranks put together."""
    return [tensor.detach().full_tensor() for tensor in tensors]


def plain(rank, size, options):
    return whole(train(sharded(**options), rank, size).parameters())


@pytest.mark.parametrize(
    "options", [{}, {"reshard_after_forward": False}, {"reshard_after_forward": 2}]
)
def test_fsdp_trains_what_one_process_trains(world, options):
    """All-gather before, reduce-scatter after; parameters are kept, freed, or kept in part."""
    ranks = world.run(plain, options)

    assert all(are_close(ranks[0], rank, atol=0) for rank in ranks)
    assert are_close(alone(), ranks[0])


def uneven(rank, size):
    """Three ranks cannot share 32 rows equally."""
    return whole(train(sharded(), rank, size).parameters())


def test_shards_may_be_of_unlike_size(world):
    assert all(are_close(alone(), rank) for rank in world.run(uneven, size=3))


def hybrid(rank, size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return whole(train(sharded(mesh=mesh), rank, size).parameters())


def test_hybrid_shards(world):
    """Two replicas of two shards: reduce-scatter within, all-reduce between."""
    assert all(are_close(alone(), rank) for rank in world.run(hybrid))


def with_memory_of_the_group(rank, size):
    model = sharded()
    for unit in (model, model[0], model[2], model[4]):
        unit.set_allocate_memory_from_process_group_for_comm(True)
    cpu = torch.device("cpu")
    assert dist.group.WORLD._get_backend(cpu).supports_tensor_alloc(cpu)
    return whole(train(model, rank, size).parameters())


def test_buffers_may_come_from_the_group(world):
    """set_allocate_memory_from_process_group_for_comm()."""
    assert all(are_close(alone(), rank) for rank in world.run(with_memory_of_the_group, size=2))


def with_a_factor(rank, size, only_sums):
    """Gradients are divided by three sizes: a third of each, at three times the rate."""
    model = sharded()
    for unit in (model, model[0], model[2], model[4]):
        unit.set_gradient_divide_factor(3.0 * size)
        unit.set_force_sum_reduction_for_comms(only_sums)
    train(model, rank, size, sgd(model, rate=0.3))
    return whole(model.parameters())


@pytest.mark.parametrize("only_sums", [True, False])
def test_gradients_may_be_divided_by_another_number(world, only_sums):
    """PREMUL_SUM, or a sum with a division before."""
    assert all(are_close(alone(), rank) for rank in world.run(with_a_factor, only_sums))


def clipped(rank, size):
    model = sharded()
    loss_of(model(batches()[0][rank::size])).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.01)
    return norm.full_tensor(), whole(parameter.grad for parameter in model.parameters())


def test_the_norm_of_gradients_is_that_of_all_shards(world):
    model = net()
    loss_of(model(batches()[0])).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.01)
    gradients = [parameter.grad for parameter in model.parameters()]

    for total, rank in world.run(clipped):
        assert torch.allclose(norm, total)
        assert are_close(gradients, rank)


def in_bfloat16(rank, size, reduce_dtype):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    return whole(train(sharded(mp_policy=policy), rank, size).parameters())


@pytest.mark.parametrize("reduce_dtype", [torch.bfloat16, torch.float32])
def test_mixed_precision(world, reduce_dtype):
    """Parameters travel in bfloat16, gradients too or in float32; float32 is kept."""
    ranks = world.run(in_bfloat16, reduce_dtype)

    assert all(are_close(ranks[0], rank, atol=0) for rank in ranks)
    assert are_close(alone(), ranks[0], atol=5e-2)


def accumulated(rank, size):
    model = sharded()
    *first, last = batches()
    model.set_requires_gradient_sync(False)
    for batch in first:
        loss_of(model(batch[rank::size])).backward()
    model.set_requires_gradient_sync(True)
    loss_of(model(last[rank::size])).backward()
    return whole(parameter.grad for parameter in model.parameters())


def test_gradients_accumulate_without_reduction(world):
    """set_requires_gradient_sync(False), as no_sync() of DDP."""
    model = net()
    for batch in batches():
        loss_of(model(batch)).backward()
    expected = [parameter.grad for parameter in model.parameters()]

    assert all(are_close(expected, rank) for rank in world.run(accumulated, size=2))
