# SPDX-License-Identifier: Apache-2.0
"""Collectives in two levels: the stand-in for NCCL within a host, the engine between hosts.

Two emulated hosts have two ranks each. Numbers are small integers, whose sums have the same bits in
every order, except where a test is about rounding.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from random import Random

import accelerator
import pytest
import test_device
import torch
import torch.distributed as dist
from test_device import host_communicators

LIMITS = {"staging_slot_bytes": 4096, "staging_slots": 3, "two_level_bytes": 512}
STAND_IN = accelerator.on_the_test_device("NCCL has no counts and no limits")
TRACED = accelerator.on_the_test_device("the trace is that of the tests' device")
QUEUES = accelerator.on_the_test_device("streams of a GPU cannot be made to share queues")
LENGTHS = (1000, 1001, 4099)
REDUCED = (
    *((dtype, op) for dtype in (torch.float32, torch.bfloat16) for op in ("SUM", "AVG", "MAX")),
    *((dtype, "SUM") for dtype in (torch.float16, torch.float64, torch.int64, torch.uint8)),
    *((torch.int32, op) for op in ("MIN", "PRODUCT")),
    *((torch.int16, "SUM"), (torch.int64, "BXOR"), (torch.bool, "SUM")),  # NCCL lacks these
)
COMBINED = {
    "SUM": lambda all_of: all_of.sum(0),
    "AVG": lambda all_of: all_of.double().mean(0),
    "MIN": lambda all_of: all_of.amin(0),
    "MAX": lambda all_of: all_of.amax(0),
    "PRODUCT": lambda all_of: all_of.prod(0),
    "BXOR": lambda all_of: reduce(torch.bitwise_xor, all_of.unbind()),
}


def run(processes, function, *args, hosts="aabb", **named):
    limits = LIMITS | named.pop("limits", {})
    size = len(hosts)
    return processes.run_ranks(function, *args, size=size, staging=limits, hosts=hosts, **named)


def num_operations():
    """Return how many operations the stand-in has had; nothing of NCCL."""
    return [] if accelerator.IS_GPU else host_communicators.num_operations()


def drawn(dtype, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    high = 2 if dtype == torch.bool else 5
    return torch.randint(0, high, shape, generator=generator).to(dtype)


def drawn_by_all(dtype, shape, seed, size):
    return torch.stack([drawn(dtype, shape, seed * 100 + rank) for rank in range(size)])


def combined(op, inputs):
    return COMBINED[op](inputs.bool().int() if inputs.dtype == torch.bool else inputs).to(
        inputs.dtype
    )


def strided(tensor):
    return tensor.new_empty((*tensor.shape, 2))[..., 0].copy_(tensor)


def check(output, expected):
    """Compare bits, but for averages, which are rounded on each level."""
    if expected.dtype.is_floating_point and not torch.equal(expected, expected.round()):
        torch.testing.assert_close(output.cpu(), expected)
    else:
        assert torch.equal(output.cpu(), expected), (output, expected)


def reduce_all(rank, size):
    """All-reduces of each dtype and operation, some in several dimensions or not contiguous."""
    pending = []
    for number, (dtype, op) in enumerate(REDUCED):
        shape = (LENGTHS[number % 3],) if number % 2 else (7, 143 + number)
        inputs = drawn_by_all(dtype, shape, number, size)
        tensor = inputs[rank].to(accelerator.NAME)
        if number % 3 == 0:
            tensor = strided(tensor)
        work = dist.all_reduce(tensor, getattr(dist.ReduceOp, op), async_op=True)
        pending.append((work, tensor, combined(op, inputs)))
    return pending


def scatter_all(rank, size):
    pending = []
    for number, (dtype, op) in enumerate(REDUCED):
        length = LENGTHS[number % 3]
        inputs = drawn_by_all(dtype, (size * length,), 100 + number, size)
        source = inputs[rank].to(accelerator.NAME)
        output = torch.empty(length, dtype=dtype).to(accelerator.NAME)
        kind = getattr(dist.ReduceOp, op)
        expected = combined(op, inputs)[rank * length :][:length]
        if number % 3 == 0:
            parts = list(source.view(size, length).unbind())
            work = dist.reduce_scatter(output, parts, kind, async_op=True)
        else:
            work = dist.reduce_scatter_single(output, source, kind, async_op=True)
        pending.append((work, output, expected))
    return pending


def gather_each(rank, size):
    pending = []
    for number, dtype in enumerate((torch.float32, torch.bool, torch.complex64, torch.int16)):
        length = LENGTHS[number % 3]
        inputs = drawn_by_all(dtype, (length,), 200 + number, size)
        output = torch.empty(size * length, dtype=dtype).to(accelerator.NAME)
        if number == 2:  # in place
            source = output[rank * length :][:length].copy_(inputs[rank])
        else:
            source = inputs[rank].to(accelerator.NAME)
        if number == 3:
            parts = [strided(torch.empty_like(source)) for _ in range(size)]
            work = dist.all_gather(parts, source, async_op=True)
            pending += [(work, part, inputs[i]) for i, part in enumerate(parts)]
        else:
            work = dist.all_gather_single(output, source, async_op=True)
            pending.append((work, output, inputs.view(-1)))
    return pending


def reduce_with_a_factor(rank, size):
    inputs = drawn_by_all(torch.float32, (2000,), 300, size)
    tensor = inputs[rank].to(accelerator.NAME)
    work = dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5), async_op=True)
    return [(work, tensor, inputs.sum(0) * 0.5)]


def several_at_once(rank, size):
    """One Work for two calls: FSDP2 and DeepSpeed gather several parameters so."""
    inputs = [drawn_by_all(torch.float32, (length,), 400 + length, size) for length in (100, 999)]
    tensors = [each[rank].to(accelerator.NAME) for each in inputs]
    outputs = [torch.empty(size * each.numel(), device=accelerator.NAME) for each in tensors]
    with dist._coalescing_manager(async_ops=True) as works:
        for output, tensor in zip(outputs, tensors, strict=True):
            dist.all_gather_single(output, tensor)
    return [(works, output, each.view(-1)) for output, each in zip(outputs, inputs, strict=True)]


def collectives(rank, size, seed):
    accelerator.set_seed(seed * 10 + rank)
    pending = [
        *reduce_all(rank, size),
        *scatter_all(rank, size),
        *gather_each(rank, size),
        *reduce_with_a_factor(rank, size),
        *several_at_once(rank, size),
    ]
    Random(seed * 10 + rank).shuffle(pending)
    for work, output, expected in pending:
        work.wait()
        check(output, expected)
    return num_operations(), accelerator.take_stale_uses()


@pytest.mark.parametrize(
    ("hosts", "piece_bytes"), [("aabb", 16 << 20), ("aaaa", 4096), ("aaabbb", 4096)]
)
def test_results(device_processes, hosts, piece_bytes):
    limits = {"two_level_piece_bytes": piece_bytes}
    for operations, stale in run(device_processes, collectives, 1, hosts=hosts, limits=limits):
        assert accelerator.IS_GPU or 2 == len(operations)
        assert all(count > 10 for count in operations)
        assert accelerator.NEVER == stale


def copies_of_one_sum(rank, size):
    """The copies of tensors by staging, which has streams of the pool, and not by the stand-in."""
    dist.all_reduce(torch.ones(16384, device=accelerator.NAME))  # makes the slots
    torch.accelerator.synchronize()
    test_device.start_trace()
    dist.all_reduce(torch.ones(16384, device=accelerator.NAME))
    torch.accelerator.synchronize()
    of_staging = [each.name for each in test_device.stop_trace() if 1 <= each.stream <= 16]
    kinds = (test_device.COPY_TO_HOST, test_device.COPY_TO_DEVICE)
    return tuple(of_staging.count(kind) for kind in kinds)


@TRACED
def test_a_rank_stages_its_share_alone(device_processes):
    """64 KiB in pieces of 4 KiB, and each of the two ranks of a host copies half of them."""
    assert [(8, 8)] * 4 == run(device_processes, copies_of_one_sum)
    assert [(16, 16)] * 4 == run(
        device_processes, copies_of_one_sum, SMDIST_GPU_COLLECTIVES="staged"
    )


def small_and_other_calls(rank, size):
    """Calls that are staged, between some that take two levels, in one group and others."""
    evens = dist.new_group([0, 2])
    pairs = [dist.new_group(pair) for pair in ([0, 1], [2, 3])]
    long = [torch.ones(1000, device=accelerator.NAME) for _ in range(3)]
    short, on_cpu, moved = torch.ones(3, device=accelerator.NAME), torch.ones(3), long[0].clone()
    works = [dist.all_reduce(long[0], async_op=True), dist.all_reduce(short, async_op=True)]
    works += [dist.all_reduce(on_cpu, async_op=True), dist.all_reduce(long[1], async_op=True)]
    works.append(dist.broadcast(moved, 1, async_op=True))
    if rank % 2 == 0:
        works.append(dist.all_reduce(long[2], group=evens, async_op=True))
    pair = torch.full((1000,), float(rank), device=accelerator.NAME)
    works.append(dist.all_reduce(pair, group=pairs[rank // 2], async_op=True))
    dist.barrier()
    for work in reversed(works):
        work.wait()
    values = [each.cpu().unique().tolist() for each in (*long, short, on_cpu, moved, pair)]
    objects = [None] * size
    dist.all_gather_object(objects, rank)
    return values, objects, num_operations()


def test_short_tensors_and_other_groups_keep_the_order(device_processes):
    ranks = run(device_processes, small_and_other_calls)
    for rank, (values, objects, operations) in enumerate(ranks):
        third, pair = (2, 1) if rank % 2 == 0 else (1, 1)

        assert [[4], [4], [third], [4], [4], [1], [pair if rank < 2 else 5]] == values
        assert [0, 1, 2, 3] == objects
        of_world_and_pair = [] if accelerator.IS_GPU else [2, 2, 1, 1]
        assert of_world_and_pair == operations


def call_behind_held_work(rank, size):
    with accelerator.held_stream():
        x = torch.ones(3000, device=accelerator.NAME).mul_(2)
        part = x.clone()
        work = dist.all_reduce(x, async_op=True)
        y = torch.empty(4 * 3000, device=accelerator.NAME)
        gathered = dist.all_gather_single(y, part, async_op=True)
        gathered.wait()
        work.wait()
        total = x + y[:3000]
        future = dist.all_reduce(total, async_op=True).get_future()
        total = future.then(lambda done: done.value()[0] + 1).wait()
        is_early = work.is_completed() or gathered.is_completed()
    return is_early, *(each.cpu().unique().tolist() for each in (x, y, total))


def test_neither_calls_nor_waits_block_the_host(device_processes):
    """The device does nothing before the host has gone on behind all waits."""
    assert [(False, [8], [2], [41])] * 4 == run(device_processes, call_behind_held_work)


def reduce_in_pieces(rank, size):
    """Let the first piece alone run within the host, until it has been everywhere."""
    x = strided(torch.arange(4097, device=accelerator.NAME, dtype=torch.float32))
    dist.all_reduce(torch.ones(1000, device=accelerator.NAME))
    torch.accelerator.synchronize()
    before = host_communicators.num_operations()
    host_communicators.limit_exchanges(1)
    work = dist.all_reduce(x, async_op=True)
    end = time.monotonic() + 30
    while host_communicators.num_operations()[1] == before[1] and time.monotonic() < end:
        time.sleep(0.01)
    after = host_communicators.num_operations()
    host_communicators.limit_exchanges(-1)
    work.wait()
    counts = [one - other for one, other in zip(after, before, strict=True)]
    return counts, torch.equal(x.cpu(), 4.0 * torch.arange(4097)), accelerator.take_stale_uses()


@STAND_IN
def test_pieces_of_a_tensor_overlap(device_processes):
    """The second piece is within the host while the first one has been on the others."""
    limits = {"two_level_piece_bytes": 4096}

    assert [([5, 1], True, accelerator.NEVER)] * 4 == run(
        device_processes, reduce_in_pieces, limits=limits
    )


def awaited(condition):
    """Return whether a condition becomes true within half a minute."""
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def gather_in_pieces(rank, size):
    """Let nothing be gathered within the host, until all pieces have been on the other hosts."""
    inputs = drawn_by_all(torch.float32, (4097,), 500, size)
    output = torch.empty(size * 4097, device=accelerator.NAME)
    dist.all_reduce(torch.ones(1000, device=accelerator.NAME))
    torch.accelerator.synchronize()
    before = host_communicators.num_operations()[1]
    host_communicators.limit_exchanges(0, backend=1)
    work = dist.all_gather_single(output, inputs[rank].to(accelerator.NAME), async_op=True)
    has_all = awaited(lambda: host_communicators.num_operations()[1] == before + 17)
    is_early = work.is_completed()
    host_communicators.limit_exchanges(-1, backend=1)
    work.wait()
    is_equal = torch.equal(output.cpu(), inputs.view(-1))
    return has_all, is_early, is_equal, accelerator.take_stale_uses()


@STAND_IN
def test_pieces_of_an_all_gather_overlap(device_processes):
    """The last of 17 pieces has been on the other hosts before the first one is gathered."""
    limits = {"two_level_piece_bytes": 4096}

    assert [(True, False, True, accelerator.NEVER)] * 4 == run(
        device_processes, gather_in_pieces, limits=limits
    )


def scatter_twice(rank, size):
    """Let the first reduce-scatter alone run within the host, one part for each of two hosts."""
    dist.all_reduce(torch.ones(1000, device=accelerator.NAME))
    torch.accelerator.synchronize()
    host_communicators.limit_exchanges(2)
    outputs = [torch.empty(1000, device=accelerator.NAME) for _ in range(2)]
    works = [
        dist.reduce_scatter_single(
            output, torch.ones(1000 * size, device=accelerator.NAME), async_op=True
        )
        for output in outputs
    ]
    is_first_done = awaited(works[0].is_completed)
    is_second_done = works[1].is_completed()
    host_communicators.limit_exchanges(-1)
    for work in works:
        work.wait()
    return is_first_done, is_second_done, [each.cpu().unique().tolist() for each in outputs]


@STAND_IN
def test_reduce_scatters_overlap_with_those_that_follow(device_processes):
    """The first one has been between hosts while the second one has not been within a host."""
    assert [(True, False, [[4], [4]])] * 4 == run(device_processes, scatter_twice)


def wait_in_any_order(rank, size, seed, share_queues):
    """Calls of several groups and messages; waits in another order on each rank and thread."""
    accelerator.set_seed(seed * 10 + rank)
    dist.all_reduce(torch.ones(1000, device=accelerator.NAME))
    second = dist.new_group(list(range(size)))
    pairs = [dist.new_group(pair) for pair in ([0, 1], [2, 3])]
    groups = [None] if share_queues else [None, second, pairs[rank // 2]]
    if share_queues:
        test_device.share_queues(True, for_each_priority=True)
    ring = [(rank + 1) % size, (rank - 1) % size]
    pending = []
    for step in range(8):
        group = groups[step % len(groups)]
        x = torch.full((1500,), float(rank + step), device=accelerator.NAME)
        total = sum(each + step for each in dist.get_process_group_ranks(group))
        pending.append((dist.all_reduce(x, group=group, async_op=True), x, [total]))
        sent = torch.full((700,), float(rank), device=accelerator.NAME)
        received = torch.empty(700, device=accelerator.NAME)
        messages = [
            dist.P2POp(dist.isend, sent, ring[0]),
            dist.P2POp(dist.irecv, received, ring[1]),
        ]
        values = [(sent, [rank]), (received, [ring[1]])]
        works = dist.batch_isend_irecv(messages)
        pending += [(work, *each) for work, each in zip(works, values, strict=True)]
    Random(seed * 10 + rank).shuffle(pending)
    half = len(pending) // 2
    with ThreadPoolExecutor(1) as other:
        later = other.submit(values_of, pending[half:])
        is_right = values_of(pending[:half]) and later.result()
    if share_queues:
        test_device.share_queues(False)
    return is_right, accelerator.take_stale_uses()


def values_of(pending):
    """Wait on a stream of this thread, and return whether all results are right."""
    with torch.Stream(device=accelerator.NAME):
        for work, _, _ in pending:
            work.wait()
        return all(expected == x.cpu().unique().tolist() for _, x, expected in pending)


@pytest.mark.parametrize("seed", range(2))
def test_waits_in_any_order_and_thread_do_not_block_each_other(device_processes, seed):
    """Of several groups that share ranks, and of messages."""
    assert [(True, accelerator.NEVER)] * 4 == run(
        device_processes, wait_in_any_order, seed, False, deadline=60
    )


@QUEUES
def test_one_queue_for_each_priority_is_enough_for_a_group(device_processes):
    """Streams that wait for calls hold up no stream without which the calls do not end."""
    assert [(True, accelerator.NEVER)] * 4 == run(
        device_processes, wait_in_any_order, 1, True, deadline=60
    )


def temporaries(rank, size):
    """Tensors that nobody keeps, some not even until wait(), in memory that is used again."""
    accelerator.set_seed(rank)
    streams = [torch.Stream(device=accelerator.NAME) for _ in range(2)]
    sums = []
    for step in range(24):
        with streams[step % 2]:
            x = torch.full((2001,), float(rank + step), device=accelerator.NAME)
            dist.all_reduce(x[::2] if step % 3 == 0 else x)
            sums.append(x[::2].sum())
            del x
            junk = torch.full((2001,), float("nan"), device=accelerator.NAME)
            del junk
            part = torch.ones(2000, device=accelerator.NAME)
            output = torch.empty(2000 * size, device=accelerator.NAME)
            work = dist.all_gather_single(output, part, async_op=True)
            if step % 3:
                work.wait()
            del work, output, part
    dist.barrier()
    torch.accelerator.synchronize()
    expected = [1001.0 * (4 * step + 6) for step in range(24)]
    return expected == [total.item() for total in sums], accelerator.take_stale_uses()


def test_tensors_may_be_freed_right_after_the_call(device_processes):
    assert [(True, accelerator.NEVER)] * 4 == run(device_processes, temporaries)


def continue_with_futures(rank, size):
    def reduce_again(future):
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    tensors = [torch.ones(1000, device=accelerator.NAME) for _ in range(4)]
    futures = [dist.all_reduce(each, async_op=True).get_future() for each in tensors]
    results = [future.then(reduce_again).wait() for future in futures]
    return [each.cpu().unique().tolist() for each in results], accelerator.take_stale_uses()


def test_callbacks_of_futures_may_call_collectives(device_processes):
    """On every rank in the same order, as callbacks of one thread are."""
    for values, stale in run(device_processes, continue_with_futures, hosts="aaaa"):
        assert [[16]] * 4 == values
        assert accelerator.NEVER == stale


def sum_of_random_numbers(rank, size, dtype):
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(5000, generator=generator).to(dtype).to(accelerator.NAME)
    dist.all_reduce(x)
    return x.cpu()


@pytest.mark.parametrize(("dtype", "distance"), [(torch.float32, 0), (torch.bfloat16, 0.04)])
def test_all_ranks_have_the_same_sums(device_processes, dtype, distance):
    """Two levels round the sum of a host to the dtype, so 16-bit sums differ from staged ones."""
    sums = run(device_processes, sum_of_random_numbers, dtype)
    staged = run(device_processes, sum_of_random_numbers, dtype, SMDIST_GPU_COLLECTIVES="staged")

    assert all(torch.equal(sums[0], each) for each in sums)
    assert (distance == 0) == torch.equal(sums[0], staged[0])
    torch.testing.assert_close(sums[0], staged[0], rtol=distance, atol=distance)


def leave_a_group(rank, size):
    group = dist.new_group(list(range(size)))
    x = torch.ones(5000, device=accelerator.NAME)
    begin = time.monotonic()
    work = dist.all_reduce(x, group=group, async_op=True)
    dist.destroy_process_group(group)
    work.wait()
    return x.cpu().unique().tolist(), time.monotonic() - begin < 10


def test_a_group_that_is_destroyed_finishes_its_operations(device_processes):
    assert [([4], True)] * 4 == run(device_processes, leave_a_group)
