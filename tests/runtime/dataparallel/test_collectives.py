# SPDX-License-Identifier: Apache-2.0
"""torch.distributed on smdist gives what one process would compute."""

import pytest
import torch
import torch.distributed as dist

SIZES = [1, 2, 3, 4]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8]


def contribution(rank, length, dtype):
    """What a rank brings: the same in the test and in the rank."""
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randint(-8, 8, (length,), generator=generator).to(dtype)


def all_reduce(rank, size, dtype, length, op):
    tensor = contribution(rank, length, dtype)
    dist.all_reduce(tensor, op=op)
    return tensor


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce_sums(world, size, dtype):
    """Every rank has the sum, for lengths that do and do not divide."""
    for length in (0, 1, 3, 1000, 100_003):
        sums = world.run(all_reduce, dtype, length, dist.ReduceOp.SUM, size=size)
        expected = sum(contribution(rank, length, dtype).double() for rank in range(size))

        if dtype == torch.uint8:
            expected = expected.remainder(256)
        assert all(torch.equal(expected.to(dtype), tensor) for tensor in sums)


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        (dist.ReduceOp.AVG, lambda stack: stack.mean(0)),
        (dist.ReduceOp.PRODUCT, lambda stack: stack.prod(0)),
        (dist.ReduceOp.MIN, lambda stack: stack.amin(0)),
        (dist.ReduceOp.MAX, lambda stack: stack.amax(0)),
    ],
)
def test_all_reduce_operations(world, op, reference):
    """Average, product, minimum, maximum."""
    results = world.run(all_reduce, torch.float32, 1000, op)
    stack = torch.stack([contribution(rank, 1000, torch.float32) for rank in range(4)])

    assert all(torch.equal(reference(stack), tensor) for tensor in results)


def mixed_magnitudes(rank, size, dtype):
    """Numbers whose sum depends on the order of addition."""
    generator = torch.Generator().manual_seed(rank)
    tensor = (torch.randn(50_001, generator=generator) * 10.0 ** (rank * 3 - 4)).to(dtype)
    dist.all_reduce(tensor)
    return tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_in_rank_order_and_bitwise_repeatable(world, dtype):
    """fp32 accumulation in rank order, one rounding: the same bits on every rank and run."""
    parts = [
        (torch.randn(50_001, generator=torch.Generator().manual_seed(r)) * 10.0 ** (r * 3 - 4))
        for r in range(4)
    ]
    expected = torch.zeros(50_001)
    for number, part in enumerate(parts):
        part = part.to(dtype).float()
        expected = part.clone() if number == 0 else expected + part

    for _ in range(3):
        for tensor in world.run(mixed_magnitudes, dtype):
            assert torch.equal(expected.to(dtype), tensor)


def everything_else(rank, size):
    mine = torch.arange(6.0) + 100 * rank
    gathered = [torch.empty(6) for _ in range(size)]
    dist.all_gather(gathered, mine)
    flat = torch.empty(6 * size)
    dist.all_gather_single(flat, mine) if hasattr(dist, "all_gather_single") else (
        dist.all_gather_into_tensor(flat, mine)
    )
    shard = torch.empty(6)
    dist.reduce_scatter_tensor(shard, torch.arange(6.0 * size) * (rank + 1))
    copy = mine.clone()
    dist.broadcast(copy, src=size - 1)
    dist.barrier()
    return gathered, flat, shard, copy


@pytest.mark.parametrize("size", SIZES)
def test_gather_scatter_broadcast_barrier(world, size):
    """All-gather in both forms, reduce-scatter, broadcast, barrier."""
    factor = size * (size + 1) / 2
    rows = [torch.arange(6.0) + 100 * rank for rank in range(size)]
    for rank, (gathered, flat, shard, copy) in enumerate(world.run(everything_else, size=size)):
        assert all(map(torch.equal, rows, gathered))
        assert torch.equal(torch.cat(rows), flat)
        assert torch.equal(torch.arange(6.0 * size)[6 * rank : 6 * rank + 6] * factor, shard)
        assert torch.equal(rows[-1], copy)


def strided(rank, size):
    tensor = torch.full((4, 6), float(rank + 1)).t()[::2]
    handle = dist.all_reduce(tensor, async_op=True)
    handle.wait()
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    return tensor.clone(), future.wait()


def test_strided_tensors_and_futures(world):
    """A tensor that is not contiguous is reduced in place; a Future carries the result."""
    for tensor, future in world.run(strided):
        assert torch.equal(torch.full((3, 4), 10.0), tensor)
        assert torch.equal(torch.full((3,), 4.0), future[0])


def in_groups(rank, size):
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    tensor = torch.tensor([float(rank)])
    works = [dist.all_reduce(tensor, group=pairs[rank % 2], async_op=True)]
    total = torch.tensor([1])
    works.append(dist.all_reduce(total, async_op=True))
    for work in works:
        work.wait()
    return tensor.item(), total.item()


def test_groups_share_the_engine(world):
    """Groups and the world run at once over the same connections."""
    assert [(2, 4), (4, 4), (2, 4), (4, 4)] == world.run(in_groups)


def exchange(rank, size):
    outputs = torch.empty(size, 2)
    dist.all_to_all_single(outputs, torch.arange(2.0 * size).view(size, 2) + 100 * rank)
    rows = [to + 1 for to in range(size)]
    uneven = torch.empty((rank + 1) * size)
    dist.all_to_all_single(uneven, torch.full((sum(rows),), float(rank)), [rank + 1] * size, rows)
    parts = [torch.empty(3, 2).t() for _ in range(size)]
    dist.all_to_all(parts, [torch.full((2, 3), 10.0 * rank + to) for to in range(size)])
    return outputs, uneven, parts


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all(world, size):
    """Equal parts, unequal parts, lists with strided outputs."""
    for rank, (outputs, uneven, parts) in enumerate(world.run(exchange, size=size)):
        assert [100.0 * source + 2 * rank for source in range(size)] == outputs[:, 0].tolist()
        assert [float(source) for source in range(size) for _ in range(rank + 1)] == uneven.tolist()
        assert all(torch.equal(torch.full((2, 3), 10.0 * s + rank), p) for s, p in enumerate(parts))


def rooted(rank, size):
    root = size - 1
    reduced = torch.full((5,), float(rank + 1))
    dist.reduce(reduced, dst=root)
    gathered = [torch.empty(2) for _ in range(size)] if rank == root else None
    dist.gather(torch.full((2,), float(rank)), gathered, dst=root)
    scattered = torch.empty(2)
    parts = [torch.full((2,), 7.0 + to) for to in range(size)] if rank == root else None
    dist.scatter(scattered, parts, src=root)
    shard = torch.empty(2)
    dist.reduce_scatter(shard, [torch.full((2,), float(rank + to)) for to in range(size)])
    return reduced, gathered, scattered, shard


@pytest.mark.parametrize("size", SIZES)
def test_rooted_collectives_and_lists(world, size):
    """Reduce and gather to the last rank, scatter from it, reduce-scatter of a list."""
    results = world.run(rooted, size=size)
    reduced, gathered, _, _ = results[-1]

    assert torch.equal(torch.full((5,), size * (size + 1) / 2), reduced)
    assert all(torch.equal(torch.full((2,), float(r)), part) for r, part in enumerate(gathered))
    for rank, (_, _, scattered, shard) in enumerate(results):
        assert torch.equal(torch.full((2,), 7.0 + rank), scattered)
        assert torch.equal(torch.full((2,), size * (size - 1) / 2 + rank * size), shard)


def objects(rank, size):
    everyone = [None] * size
    dist.all_gather_object(everyone, {"rank": rank})
    told = [f"from {rank}"]
    dist.broadcast_object_list(told, src=0)
    return everyone, told


def test_object_collectives(world):
    """What torch builds of them: pickled objects."""
    for everyone, told in world.run(objects):
        assert [{"rank": rank} for rank in range(4)] == everyone
        assert ["from 0"] == told
