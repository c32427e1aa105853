# SPDX-License-Identifier: Apache-2.0
"""DDP, FSDP2 and what builds on them do with a device what one process on the CPU does."""

import accelerator
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from small_training import OPTIONS, batch, net, shard_of_batch, train
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import smdist.dataparallel.torch.distributed as smddp_1
from smdist.dataparallel.torch.parallel.distributed import DistributedDataParallel

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


def with_names_of_smddp_1(rank, size):
    """Train with the class of SMDDP 1.0 to 1.3, and call its functions; return what they made."""
    accelerator.set_seed(rank)
    model = DistributedDataParallel(net().to(accelerator.NAME), bucket_cap_mb=0.01)
    parameters = train(model, *shard_of_batch(rank, size, accelerator.NAME))
    sent = torch.full((1500,), float(rank), device=accelerator.NAME)
    exchanged = torch.empty(size, device=accelerator.NAME)
    parts = torch.tensor([10.0 * rank, 10.0 * rank + 1], device=accelerator.NAME)
    smddp_1.broadcast(sent, 1)
    smddp_1.all_to_all_single(exchanged, parts)
    functions = sent.unique().tolist(), exchanged.tolist()
    return [each.cpu() for each in parameters], functions, accelerator.take_stale_uses()


def test_names_of_smddp_1(device_processes):
    expected = train(net(), *batch())
    ranks = device_processes.run_ranks(with_names_of_smddp_1, size=2, staging=SLOTS)
    for rank, (parameters, functions, stale) in enumerate(ranks):
        torch.testing.assert_close(parameters, expected, rtol=0, atol=accelerator.ROUNDING)
        assert ([1], [rank, 10 + rank]) == functions
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


def with_zero(rank, size):
    """Train with an optimizer whose state the ranks share out; return the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns when it is imported

    accelerator.set_seed(rank)
    model = nn.parallel.DistributedDataParallel(net().to(accelerator.NAME))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **OPTIONS)
    parameters = train(model, *shard_of_batch(rank, size, accelerator.NAME), optimizer)
    num_own = len(optimizer.optim.state)
    return num_own, [each.cpu() for each in parameters], accelerator.take_stale_uses()


def test_zero_redundancy_optimizer(device_processes):
    expected = train(net(), *batch())
    ranks = device_processes.run_ranks(with_zero, size=2, staging=SLOTS)

    assert len(expected) == sum(num_own for num_own, _, _ in ranks)
    for _, parameters, stale in ranks:
        torch.testing.assert_close(parameters, expected, rtol=0, atol=accelerator.ROUNDING)
        assert accelerator.NEVER == stale


def redistribute(rank, size):
    """Return whole tensors after each way from one placement to another, and whole sums."""
    accelerator.set_seed(rank)
    mesh = dist.init_device_mesh(accelerator.NAME, (size,))
    matrix = torch.arange(35.0).view(7, 5).to(accelerator.NAME)
    places = [Replicate(), Shard(0), Shard(1)]
    parts = [distribute_tensor(matrix, mesh, [place]) for place in places]
    sums = DTensor.from_local(matrix * (rank + 1), mesh, [Partial()])
    moved = [part.redistribute(mesh, [place]) for part in parts for place in places]
    summed = [sums.redistribute(mesh, [place]) for place in places]
    return [[each.full_tensor().cpu() for each in tensors] for tensors in (moved, summed)]


def test_dtensor(device_processes):
    """Shards of rows and of columns in unequal parts, and sums, in each order."""
    expected = torch.arange(35.0).view(7, 5)
    for moved, summed in device_processes.run_ranks(redistribute, size=2, staging=SLOTS):
        assert 9 == sum(torch.equal(expected, each) for each in moved)
        assert 3 == sum(torch.equal(3 * expected, each) for each in summed)


def save_and_load(rank, size, folder):
    """Save what FSDP2 has trained, and load it into a fresh model; return the whole parameters."""
    accelerator.set_seed(rank)
    mesh = dist.init_device_mesh(accelerator.NAME, (size,))
    trained, fresh = (fully_shard(net().to(accelerator.NAME), mesh=mesh) for _ in range(2))
    train(trained, *shard_of_batch(rank, size, accelerator.NAME))
    dcp.save(get_model_state_dict(trained), checkpoint_id=folder)
    state = get_model_state_dict(fresh)
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(fresh, state)
    return [each.full_tensor().cpu() for each in fresh.parameters()]


def test_distributed_checkpoint(device_processes, tmp_path):
    expected = train(net(), *batch())
    ranks = device_processes.run_ranks(save_and_load, str(tmp_path), size=2, staging=SLOTS)
    for parameters in ranks:
        torch.testing.assert_close(parameters, expected, rtol=0, atol=accelerator.ROUNDING)
