# SPDX-License-Identifier: Apache-2.0
"""Collectives under Horovod's names give what one process would compute."""

import json
import os

import torch
import torch.distributed as dist
from hvd_ranks import initialized, strict_warnings
from ports import free_port

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64]


def values(rank, shape=(3, 5), dtype=torch.float32):
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-99, 99, shape, generator=generator).to(dtype)


def reductions(rank, size):
    with initialized() as hvd:
        every = [values(each) for each in range(size)]
        stack = torch.stack(every)
        mine = values(rank)
        assert torch.equal(stack.sum(0), hvd.allreduce(mine, op=hvd.Sum))
        assert torch.equal(stack.mean(0), hvd.allreduce(mine))
        assert torch.equal(stack.amin(0), hvd.allreduce(mine, op=hvd.Min))
        assert torch.equal(stack.amax(0), hvd.allreduce(mine, op=hvd.Max))
        assert torch.equal(stack.prod(0), hvd.allreduce(mine, op=hvd.Product))
        assert torch.equal(values(rank), mine)
        for dtype in DTYPES:
            total = torch.stack([each.to(dtype) for each in every]).sum(0)
            assert torch.equal(total, hvd.allreduce(mine.to(dtype), op=hvd.Sum))
        whole = torch.stack([each.long() for each in every]).sum(0)
        mean = torch.div(whole, size, rounding_mode="trunc")
        assert torch.equal(mean, hvd.allreduce(mine.long()))
        debt = torch.tensor([-size - 1 if rank == 0 else 0])
        assert -1 == hvd.allreduce(debt).item()
        assert torch.equal(
            stack.sum(0) * 0.5, hvd.allreduce(mine * 2, op=hvd.Sum, prescale_factor=0.25)
        )
        assert torch.equal(stack.mean(0) * 8, hvd.allreduce(mine, postscale_factor=8.0))
        halved = torch.stack([(each.double() * 0.3).long() for each in every]).sum(0)
        assert torch.equal(halved, hvd.allreduce(mine.long(), op=hvd.Sum, prescale_factor=0.3))
        small = hvd.allreduce(mine, compression=hvd.Compression.fp16)
        assert small.dtype is torch.float32
        assert torch.allclose(stack.mean(0), small, atol=0.05)
        in_place = mine.clone()
        assert hvd.allreduce_(in_place, op=hvd.Sum) is in_place
        assert torch.equal(stack.sum(0), in_place)
        strided = values(rank).t()
        hvd.allreduce_(strided, op=hvd.Sum)
        assert torch.equal(stack.sum(0).t(), strided)


def test_reductions(world):
    """Every reduce operation, dtypes, averages of integers, factors, compression, in place."""
    world.run(reductions)


def groups_and_handles(rank, size):
    with initialized() as hvd:
        mixed = [torch.full((4,), float(rank)), torch.full((2, 2), rank), torch.tensor(1.5)]
        total = size * (size - 1) // 2
        results = hvd.grouped_allreduce(mixed, op=hvd.Sum)
        assert [4, 4, 1] == [each.numel() for each in results]
        assert torch.equal(torch.full((2, 2), total), results[1])
        assert 1.5 * size == results[2].item()
        first = hvd.allreduce_async(mixed[0], op=hvd.Sum)
        second = hvd.grouped_allreduce_async_(mixed, op=hvd.Sum)
        assert {float(total)} == set(hvd.synchronize(second)[0].tolist())
        assert hvd.poll(first)
        assert {float(total)} == set(hvd.synchronize(first).tolist())
        assert {float(total)} == set(mixed[0].tolist())
        rows = torch.full((rank, 2), float(rank))
        handle = hvd.allgather_async(rows)
        expected = torch.cat([torch.full((each, 2), float(each)) for each in range(size)])
        assert torch.equal(expected, hvd.synchronize(handle))
        one, two = hvd.grouped_allgather([rows, torch.ones(1, dtype=torch.int8)])
        assert torch.equal(expected, one)
        assert torch.equal(torch.ones(size, dtype=torch.int8), two)
        root = size - 1
        assert root == hvd.broadcast(torch.tensor(rank), root).item()
        copy = torch.full((3,), rank)
        assert hvd.broadcast_(copy, root) is copy
        assert [root] * 3 == copy.tolist()
        sent = torch.cat([torch.full((each + 1,), 10.0 * rank + each) for each in range(size)])
        got, splits = hvd.alltoall(sent, torch.arange(1, size + 1))
        assert [rank + 1] * size == splits.tolist()
        assert got.tolist() == [10.0 * each + rank for each in range(size) for _ in range(rank + 1)]
        equal = hvd.synchronize(hvd.alltoall_async(torch.arange(float(size)) + 10 * rank))
        assert equal.tolist() == [10.0 * each + rank for each in range(size)]
        uneven = torch.arange(float(size + 1)).repeat(2, 1).t() * (rank + 1)
        part = hvd.reducescatter(uneven, op=hvd.Sum)
        share = [2] + [1] * (size - 1)
        start = sum(share[:rank])
        rows = torch.arange(float(size + 1)).repeat(2, 1).t()[start : start + share[rank]]
        assert torch.equal(rows * (total + size), part)
        a, b = hvd.grouped_reducescatter([torch.ones(size), torch.full((size, 2), rank)])
        assert [1.0] == a.tolist()
        assert [[total // size] * 2] == b.tolist()
        sparse = torch.sparse_coo_tensor([[rank, 0]], [1.0, 2.0], (size,))
        with strict_warnings():
            dense = hvd.sparse_allreduce_async(sparse, "s", hvd.Sum)().to_dense()
        assert [2.0 * size + 1] + [1.0] * (size - 1) == dense.tolist()
        hvd.barrier()
        assert {"rank": root} == hvd.broadcast_object({"rank": rank}, root)
        assert [(each, "x" * each) for each in range(size)] == hvd.allgather_object(
            (rank, "x" * rank)
        )


def test_other_collectives(world):
    """Groups, handles, uneven rows, splits, sparse tensors and objects."""
    world.run(groups_and_handles)


def gradients(rank, size):
    with initialized() as hvd:

        def gradient(function, shape=(size,)):
            tensor = torch.ones(shape, dtype=torch.float64, requires_grad=True)
            result = function(tensor)
            (result * (rank + 1)).sum().backward()
            return tensor.grad

        total = size * (size + 1) / 2
        assert {total} == set(gradient(lambda t: hvd.allreduce(t, op=hvd.Sum)).tolist())
        assert {total / size} == set(gradient(hvd.allreduce).tolist())
        assert {total} == set(
            gradient(lambda t: hvd.grouped_allreduce([t, t], op=hvd.Sum)[1]).tolist()
        )
        assert {total / size} == set(gradient(hvd.allgather, (rank + 1,)).tolist())
        expected = total / size if rank == 1 else 0.0
        assert {expected} == set(gradient(lambda t: hvd.broadcast(t, 1)).tolist())
        sent = gradient(lambda t: hvd.alltoall(t, [1] * (size - 1) + [0])[0])
        assert [*range(1, size), 0] == sent.tolist()
        ranks = torch.arange(1.0, size + 1).double()
        assert torch.equal(ranks, gradient(hvd.reducescatter))
        assert torch.equal(ranks * size, gradient(lambda t: hvd.reducescatter(t, op=hvd.Sum)))


def test_gradients(world):
    """Autograd goes through each collective as in Horovod."""
    world.run(gradients)


def adaptive(rank, size):
    with initialized() as hvd:
        same = hvd.allreduce(torch.tensor([3.0, 4.0]), op=hvd.Adasum)
        own = torch.zeros(size)
        own[rank] = rank + 1.0
        tiny = hvd.allreduce(torch.full((2,), 1e-30), op=hvd.Adasum)
        return same, hvd.allreduce(own, op=hvd.Adasum), tiny


def test_adasum(world):
    """Equal vectors are averaged, even tiny ones, and orthogonal ones are added."""
    for same, added, tiny in world.run(adaptive):
        assert torch.allclose(torch.tensor([3.0, 4.0]), same)
        assert torch.allclose(torch.tensor([1.0, 2.0, 3.0, 4.0]), added)
        assert torch.allclose(torch.full((2,), 1e-30), tiny, atol=0)


def own_engine(rank, size, port):
    """Connect without a process group, and make one beside it."""
    dist.destroy_process_group()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank % 2)}
    os.environ |= {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        facts = []
        for _ in range(2):
            with initialized() as hvd:
                assert hvd.is_initialized()
                total = hvd.allreduce(torch.ones(2), op=hvd.Sum)
                store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
                dist.init_process_group("smdist", store=store, rank=rank, world_size=size)
                other = torch.ones(3)
                dist.all_reduce(other)
                again = hvd.allreduce(torch.ones(2), op=hvd.Sum)
                dist.barrier()
                dist.destroy_process_group()
                del store
                facts.append((hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()))
                facts.append((hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()))
                assert size == total[0] == other[0] == again[0]
                hvd.barrier()
            assert not hvd.is_initialized()
        return facts
    finally:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
            os.environ.pop(name, None)


def test_own_engine_beside_torch(world):
    """Without a process group init() connects by itself, also again after shutdown()."""
    for rank, facts in enumerate(world.run(own_engine, free_port())):
        assert [(rank, 4, rank % 2, 2), (rank // 2, 2, True)] * 2 == facts


def alone(rank, size):
    dist.destroy_process_group()
    with initialized() as hvd:
        assert 2.0 == hvd.allreduce(torch.tensor([2.0])).item()
        assert [3] == hvd.allgather(torch.tensor([3])).tolist()
        assert 0 == hvd.join()
        model = torch.nn.Linear(1, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        assert [1.0] == model.bias.grad.tolist()
        built = hvd.nccl_built(), hvd.mpi_enabled(), hvd.gloo_built(), hvd.rocm_built()
        return (hvd.rank(), hvd.size(), hvd.cross_size()), built


def test_lone_process(world):
    """A process without the variables of a launcher is the only rank."""
    assert [((0, 1, 1), (0, False, False, False))] == world.run(alone, size=1)


def records(rank, size, path):
    with initialized() as hvd:
        hvd.start_timeline(path)
        for length in range(1, 6):
            hvd.allreduce(torch.ones(length), op=hvd.Sum)
        hvd.allgather(torch.ones(1), name="rows")
        for _ in range(2 * rank):
            hvd.allreduce(torch.ones(1))
        hvd.join()
        for named in (True, False):
            reduces(hvd, named)
        hvd.allreduce(torch.ones(6), name="last")
        reduces_much(hvd)
        # shutdown() ends the timeline


def reduces(hvd, named):
    """Reduce the gradients of a layer, of which only the bias is in a group."""
    layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    names = layers.named_parameters() if named else None
    inner = torch.optim.SGD(layers.parameters(), 0.1)
    groups = [[layers[1].bias]]
    optimizer = hvd.DistributedOptimizer(inner, names, groups=groups)
    layers(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def reduces_much(hvd):
    """Reduce the gradients of 12 layers of 1 MiB each."""
    layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(12)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layers.parameters(), 0.1))
    layers(torch.ones(1, 512)).sum().backward()
    optimizer.step()


def test_a_timeline_has_rank_0s_operations(world, tmp_path):
    """The file is whole after shutdown(), without stop_timeline()."""
    world.run(records, str(tmp_path / "timeline.json"), size=2)
    events = json.loads((tmp_path / "timeline.json").read_text())
    begun = [each for each in events if each["ph"] == "b" and each["args"]]
    sums = [each["args"]["bytes"] for each in begun if each["args"]["kind"] == "all_reduce"]
    names = [each["name"] for each in begun]

    assert [4, 8, 12, 16, 20] == sums[:5]
    assert [f"allreduce.noname.{number}" for number in range(1, 6)] == names[:5]
    assert ["allgather.rows/negotiate", "allgather.rows"] == names[5:7]
    assert [
        "allreduce.1.bias",
        "allreduce.1.weight..0.weight (3)",
        "allreduce.noname.3",
        "allreduce.noname.2..noname.0 (3)",
        "allreduce.last",
    ] == names[-9:-4]
    assert [size << 20 for size in (1, 2, 4, 5)] == sums[-4:]  # the first buckets are small
    assert {0} == {each["pid"] for each in events}
    assert all(each["ts"] >= 0 for each in events if each["ph"] != "M")
