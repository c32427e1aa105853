# SPDX-License-Identifier: Apache-2.0
"""Collectives on the tensors of a device give what they give on the CPU, bit for bit.

The slots of pinned memory are so small that most operations have several pieces and wait for slots.
"""

import gc
import os
from random import Random

import accelerator
import pytest
import torch
import torch.distributed as dist
from programs import play
from programs.meaning import bits

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}
PROGRAMS = int(os.environ.get("SMDIST_TEST_DEVICE_PROGRAMS", "50"))
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
KINDS = [
    *((dtype, (5003,)) for dtype in (*FLOATS, torch.int64, torch.bool, torch.complex64)),
    *((torch.float32, shape) for shape in ((), (0,), (1,), (3, 700))),
]


def drawn(dtype, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 1000, shape, generator=generator).to(
        dtype
    )


class Inputs:
    """Numbers that depend on the rank and on how many were drawn before."""

    def __init__(self, rank, size, device, dtype, shape, is_strided):
        self.rank, self.size, self.device = rank, size, device
        self.dtype, self.shape, self.is_strided = dtype, shape, is_strided
        self.count = 0

    def one(self, shape=None):
        self.count += 1
        shape = self.shape if shape is None else shape
        tensor = drawn(self.dtype, shape, 100 * self.count + self.rank).to(self.device)
        if self.is_strided:
            return tensor.new_empty((*tensor.shape, 2))[..., 0].copy_(tensor)
        return tensor

    def several(self):
        return [self.one() for _ in range(self.size)]

    def rows(self, factor=1):
        return (self.size * factor, *self.shape[1:])


def reductions(inputs):
    a, b, c, d, e = inputs.one(), inputs.one(), inputs.one(), inputs.one(), inputs.several()
    f, g = inputs.one((inputs.size * 601,)), inputs.one((601,))
    yield [a], dist.all_reduce(a, async_op=True)
    yield [b], dist.reduce(b, 1, async_op=True)
    yield [c], dist.reduce_scatter(c, e, async_op=True)
    yield [g], dist.reduce_scatter_single(g, f, async_op=True)
    both = [d, inputs.one()]
    yield both, dist.all_reduce_coalesced(both, async_op=True)
    if inputs.dtype in FLOATS:
        average = inputs.one()
        yield [average], dist.all_reduce(average, dist.ReduceOp.AVG, async_op=True)


def moves(inputs):
    root = inputs.rank == 1
    a, b, c = inputs.one(), inputs.several(), inputs.one()
    yield [a], dist.broadcast(a, 2, async_op=True)
    yield b, dist.all_gather(b, c, async_op=True)
    d, e = inputs.one((inputs.size * 601,)), inputs.one((601,))
    yield [d], dist.all_gather_single(d, e, async_op=True)
    f, g, h = inputs.several(), inputs.one(), inputs.one()
    yield f if root else [], dist.gather(g, f if root else None, 1, async_op=True)
    yield [h], dist.scatter(h, inputs.several() if root else None, 1, async_op=True)
    outs = inputs.several()
    yield outs, dist.all_to_all(outs, inputs.several(), async_op=True)
    rank, size = inputs.rank, inputs.size
    given = [50 * (rank + 1) + to for to in range(size)]
    taken = [50 * (source + 1) + rank for source in range(size)]
    i, j = inputs.one((sum(taken), 3)), inputs.one((sum(given), 3))
    yield [i], dist.all_to_all_single(i, j, taken, given, async_op=True)


def messages(inputs):
    rank, size = inputs.rank, inputs.size
    k, m = inputs.one(), inputs.one()
    received = dist.irecv(k, (rank - 1) % size, tag=5)
    yield [], dist.isend(m, (rank + 1) % size, tag=5)
    yield [k], received


def started(inputs):
    yield from reductions(inputs)
    yield from moves(inputs)
    yield from messages(inputs)


def kinds_without_sums(inputs):
    """All-reduce is the one reduction of complex numbers."""
    tensor = inputs.one()
    yield [tensor], dist.all_reduce(tensor, async_op=True)
    yield from moves(inputs)
    yield from messages(inputs)


def both(rank, size, seed, dtype, shape):
    """Start all calls on the CPU and on both devices in turn, and wait in any order."""
    random = Random(seed * 10 + rank)
    accelerator.set_seed(random.randrange(1 << 30))
    calls = kinds_without_sums if dtype.is_complex else started
    devices = ("cpu", f"{accelerator.NAME}:0", accelerator.second_device())
    is_strided = bool(seed % 2)
    all_calls = [calls(Inputs(rank, size, device, dtype, shape, is_strided)) for device in devices]
    pending, compared = [], []
    for alike in zip(*all_calls, strict=True):
        compared.append([outputs for outputs, _ in alike])
        pending += [work for _, work in alike]
    del alike, all_calls
    random.shuffle(pending)
    for work in pending:
        work.wait()
    for on_cpu, *others in compared:
        for outputs in others:
            for expected, output in zip(on_cpu, outputs, strict=True):
                assert same_bits(expected, output.cpu())


def same_bits(one, other):
    """Whether two tensors have the same shape and bytes."""
    return one.shape == other.shape and torch.equal(bits(one), bits(other))


def all_kinds(rank, size, seeds):
    for seed in seeds:
        for dtype, shape in KINDS:
            both(rank, size, seed, dtype, shape)
        gc.collect()
    return accelerator.take_stale_uses()


def test_results_are_those_of_the_cpu(device_processes):
    """In four orders of streams, one after the other on the same ranks."""
    ranks = device_processes.run_ranks(all_kinds, range(4), size=3, staging=SLOTS, deadline=120)

    assert [accelerator.NEVER] * 3 == ranks


def programs(rank, size, seeds):
    accelerator.set_seed(rank + seeds[0])
    first = f"{accelerator.NAME}:0"
    for seed in seeds:
        play(seed, rank, size, devices=(first, first, "cpu", accelerator.second_device()))
    return accelerator.take_stale_uses()


@pytest.mark.parametrize("first", range(0, PROGRAMS, 25))
def test_random_programs(device_processes, first):
    size = 2 + first % 2
    ranks = device_processes.run_ranks(
        programs, range(first, first + 25), size=size, staging=SLOTS, deadline=150
    )

    assert [accelerator.NEVER] * size == ranks


def temporaries(rank, size):
    """Tensors that nobody keeps after wait(), in memory that is used again at once."""
    sums = []
    for step in range(40):
        x = torch.full((2000,), float(rank + step), device=accelerator.NAME)
        dist.all_reduce(x[::2] if step % 2 else x)
        sums.append(x.sum())
        del x
        junk = torch.full((2000,), float("nan"), device=accelerator.NAME)
        del junk
        work = dist.all_gather_single(
            torch.empty(2000 * size, device=accelerator.NAME),
            torch.full((2000,), 1.0, device=accelerator.NAME),
            async_op=True,
        )
        if step % 3:
            work.wait()
        del work
    dist.barrier()
    return [total.item() for total in sums], accelerator.take_stale_uses()


def test_tensors_may_be_freed_right_after_wait(device_processes):
    for rank, (sums, stale) in enumerate(
        device_processes.run_ranks(temporaries, size=2, staging=SLOTS)
    ):
        for step, total in enumerate(sums):
            rest = 1000 * (rank + step) if step % 2 else 0
            assert (1000 if step % 2 else 2000) * (2 * step + 1) + rest == total
        assert accelerator.NEVER == stale
