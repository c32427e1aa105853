# SPDX-License-Identifier: Apache-2.0
"""Random programs of twenty collectives each give what one process computes, twice the same bits.

`make programs` runs a thousand of them.
"""

import os
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
import torch
import torch.distributed as dist
from programs import play
from programs.drawing import draw
from programs.meaning import combined, differs
from ranks import RankFailedError

SIZES = (2, 3, 4, 5)
PROGRAMS = int(os.environ.get("SMDIST_TEST_PROGRAMS", "160"))
BLOCK = 20  # programs in one process group


def play_block(rank, size, seeds):
    torch.set_num_threads(1)
    for seed in seeds:
        play(seed, rank, size)


@pytest.mark.parametrize("first", range(0, PROGRAMS, BLOCK))
def test_random_programs(world, first):
    """On any layout of ranks on hosts. What differs is named with its seed and its call."""
    size = SIZES[first // BLOCK % len(SIZES)]
    hosts = "".join(Random(first).choices("abc", k=size))

    world.run(play_block, range(first, first + BLOCK), size=size, hosts=hosts)


def play_without_all_reduce(rank, size):
    right, dist.all_reduce = dist.all_reduce, lambda *args, **options: None
    try:
        play_block(rank, size, range(3))
    finally:
        dist.all_reduce = right


def test_a_wrong_result_is_found_and_named(world):
    """An all-reduce that does nothing."""
    with pytest.raises(RankFailedError, match=r"program \d, Call\(.*kind='all_reduce'"):
        world.run(play_without_all_reduce, size=2)


def test_a_second_rounding_is_found():
    """A sum in bfloat16 step by step is outside the bound, one in float32 is not."""
    call = replace(draw(0, 2).calls[0], kind="all_reduce", dtype=torch.bfloat16, op="sum")
    parts = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    want = combined(call, list(parts))

    assert not differs(call, want, (parts[0].float() + parts[1] + parts[2]).bfloat16())
    assert differs(call, want, parts[0] + parts[1] + parts[2])


def receive_first(rank, size):
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=2))
    tensor = torch.full((2,), float(rank))
    if rank == 0:
        dist.send(tensor, dst=1, group=group)
    else:
        dist.recv(tensor, group=group)
    return tensor.tolist()


def test_receiving_from_any_comes_first(world):
    """Nothing has connected the ranks before."""
    assert [[0.0, 0.0]] * 2 == world.run(receive_first, size=2)
