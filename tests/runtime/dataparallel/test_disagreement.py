# SPDX-License-Identifier: Apache-2.0
"""Ranks that call different things: all of them raise an error soon that names rank and call."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from engine_faults import fault_fields

SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX

# What most ranks call, and what the last one calls instead.
CALLS = {
    "length": (lambda g: dist.all_reduce(torch.ones(4), group=g),
               lambda g: dist.all_reduce(torch.ones(5), group=g)),
    "dtype": (lambda g: dist.all_reduce(torch.ones(4), group=g),
              lambda g: dist.all_reduce(torch.ones(4).int(), group=g)),
    "reduce op": (lambda g: dist.all_reduce(torch.ones(4), SUM, group=g),
                  lambda g: dist.all_reduce(torch.ones(4), MAX, group=g)),
    "root": (lambda g: dist.broadcast(torch.ones(4), group_src=0, group=g),
             lambda g: dist.broadcast(torch.ones(4), group_src=1, group=g)),
    "collective": (lambda g: dist.all_reduce(torch.ones(4), group=g),
                   lambda g: dist.all_gather([torch.ones(4)] * dist.get_world_size(g),
                                             torch.ones(4), group=g)),
    "barrier": (lambda g: dist.all_reduce(torch.ones(4), group=g),
                lambda g: dist.barrier(group=g)),
    "broadcast length": (lambda g: dist.broadcast(torch.ones(4), group_src=0, group=g),
                         lambda g: dist.broadcast(torch.ones(5), group_src=0, group=g)),
}  # fmt: skip
CALLED = ("all_reduce", "broadcast", "barrier", "all_gather")


def disagree(rank, size, what, in_group):
    """Text of this rank's error, kind of the fault, and how long it took."""
    group = dist.new_group(list(range(size))) if in_group else dist.group.WORLD
    usual, other = CALLS[what]
    start = time.monotonic()
    try:
        dist.barrier(group=group)  # a slow rank may hear of it here
        start = time.monotonic()
        (other if rank == size - 1 else usual)(group)
        dist.barrier(group=group)  # where the first call needed nobody who differs
    except (ValueError, dist.DistBackendError) as error:
        return str(error), *fault_fields("kind"), time.monotonic() - start
    return "no error", "", time.monotonic() - start


@pytest.mark.parametrize("in_group", [False, True], ids=["world", "group"])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("what", CALLS)
def test_every_rank_raises_and_names_both_sides(world, what, size, in_group):
    """The last rank differs; all raise an error within two seconds."""
    for said, kind, seconds in world.run(disagree, what, in_group, size=size, deadline=20):
        assert "usage" == kind
        assert f"rank {size - 1} " in said
        assert any(f" called {name}(" in said for name in CALLED)
        assert 2 > seconds


def leave(rank, size, how):
    dist.barrier()
    if rank == size - 1:
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        dist.destroy_process_group()
        if how == "exits":
            os._exit(0)
        return "", 0
    start = time.monotonic()
    try:
        dist.all_reduce(torch.ones(100_000))
    except dist.DistBackendError:
        return fault_fields(), time.monotonic() - start
    return "no error", time.monotonic() - start


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        ("destroys its group", {"left", "lost"}),  # lost: it had no connection to say that it left
        ("exits", {"left", "lost"}),
        ("is killed", {"lost"}),
    ],
)
def test_a_rank_that_left_is_named(world, size, how, kinds):
    """In order or not: within two seconds."""
    for ok, outcome in world.outcomes(leave, how, size=size, deadline=20)[:-1]:
        assert ok
        (kind, *culprit_and_operation), seconds = outcome
        assert kind in kinds
        assert [size - 1, "all_reduce"] == culprit_and_operation
        assert 2 > seconds
