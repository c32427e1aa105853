# SPDX-License-Identifier: Apache-2.0
"""Ranks that call different things: each raises an error soon, and the next call works."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from engine_faults import fault_fields

from smdist.dataparallel.rendezvous.engine_interface import EngineFault
from smdist.dataparallel.rendezvous.engine_shutdown import last_fault
from smdist.dataparallel.torch import _C

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
    "root of a long broadcast": (
        lambda g: dist.broadcast(torch.ones(100_000), group_src=0, group=g),
        lambda g: dist.broadcast(torch.ones(100_000), group_src=1, group=g)),
    "root of a reduce": (lambda g: dist.reduce(torch.ones(4), group_dst=0, group=g),
                         lambda g: dist.reduce(torch.ones(4), group_dst=1, group=g)),
    "root of a gather": (lambda g: gather(g, 0), lambda g: gather(g, 1)),
    "root of a scatter": (lambda g: scatter(g, 0), lambda g: scatter(g, 1)),
    "collective": (lambda g: dist.all_reduce(torch.ones(4), group=g),
                   lambda g: dist.all_gather([torch.ones(4)] * dist.get_world_size(g),
                                             torch.ones(4), group=g)),
    "barrier": (lambda g: dist.all_reduce(torch.ones(4), group=g),
                lambda g: dist.barrier(group=g)),
    "broadcast length": (lambda g: dist.broadcast(torch.ones(4), group_src=0, group=g),
                         lambda g: dist.broadcast(torch.ones(5), group_src=0, group=g)),
}  # fmt: skip
CALLED = ("all_reduce", "broadcast", "barrier", "all_gather", "reduce", "gather", "scatter")


def parts(group, root):
    """A tensor for each rank, on the root alone."""
    is_root = dist.get_rank(group) == root
    return [torch.ones(4) for _ in range(dist.get_world_size(group))] if is_root else None


def gather(group, root):
    dist.gather(torch.ones(4), parts(group, root), group_dst=root, group=group)


def scatter(group, root):
    dist.scatter(torch.ones(4), parts(group, root), group_src=root, group=group)


def disagree(rank, size, in_group):
    """For each of CALLS: text of this rank's error, kind of the fault, and how long it took."""
    group = dist.new_group(list(range(size))) if in_group else dist.group.WORLD
    answers = {}
    for what, (usual, other) in CALLS.items():
        dist.barrier(group=group)
        said, kind = "", ""
        start = time.monotonic()
        try:
            (other if rank == size - 1 else usual)(group)
        except ValueError as error:
            said, (kind,) = str(error), fault_fields("kind")
        seconds = time.monotonic() - start
        numbers = torch.full((1000,), float(rank))
        dist.all_reduce(numbers, group=group)
        assert (size * (size - 1) / 2) == numbers[-1]
        assert last_fault() is None
        answers[what] = said, kind, seconds
    return answers


def keep_fault(rank, size):
    """Faults of a failed operation and of the next one, when both have ended."""
    failed = dist.all_reduce(torch.ones(4 + (rank == size - 1)), async_op=True)
    good = dist.all_reduce(torch.ones(4), async_op=True)
    with pytest.raises(ValueError, match="all_reduce"):
        failed.wait()
    good.wait()
    return [EngineFault.of(_C.fault_of(work)) for work in (failed, good)]


def test_an_operation_keeps_its_fault_when_later_ones_succeed(world):
    for failed, good in world.run(keep_fault, size=2):
        assert ("usage", "all_reduce") == (failed.kind, failed.operation)
        assert good is None


@pytest.mark.parametrize("in_group", [False, True], ids=["world", "group"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_rank_raises_and_names_both_sides_and_the_next_call_works(world, size, in_group):
    """The last rank differs; all raise an error at once."""
    for answers in world.run(disagree, in_group, size=size, deadline=60):
        for what, (said, kind, seconds) in answers.items():
            assert (what, "usage") == (what, kind)
            assert f"rank {size - 1} " in said
            assert any(f" called {name}(" in said for name in CALLED)
            assert 5 > seconds


def disagree_about_several_tensors(rank, size):
    group = dist.group.WORLD
    tensors = [torch.ones(4000), torch.ones(4)] + [torch.ones(9)] * (rank == 1)
    with pytest.raises(ValueError) as raised:  # noqa: PT011  its fields are below
        dist.all_reduce_coalesced(tensors, group=group)
    assert ("usage", "all_reduce") == fault_fields("kind", "operation")
    dist.all_reduce_coalesced(whole := [torch.ones(4000), torch.ones(4)], group=group)
    return str(raised.value), [each.unique().tolist() for each in whole]


@pytest.mark.filterwarnings("ignore:.*all_reduce_coalesced.*")
def test_a_call_with_several_tensors_is_one_call(world):
    """Another number of tensors on one rank: the next call works, however many there were."""
    for said, values in world.run(disagree_about_several_tensors, size=3, deadline=20):
        assert "rank 1 " in said
        assert " of 4004) " in said
        assert " of 4013) " in said
        assert [[3.0], [3.0]] == values


def send_what_does_not_fit(rank, size):
    with pytest.raises(ValueError) as raised:  # noqa: PT011  its fields are below
        dist.send(torch.ones(4), 1) if rank == 0 else dist.recv(torch.ones(5), 0)
    assert ("usage",) == fault_fields("kind")
    if rank == 0:
        dist.send(torch.ones(6), 1)
    else:
        dist.recv(numbers := torch.zeros(6), 0)
        assert [1] == numbers.unique().tolist()
    dist.barrier()
    return str(raised.value)


def test_a_message_that_does_not_fit_ends_alone(world):
    for said in world.run(send_what_does_not_fit, size=2, deadline=20):
        assert "called send(float32, 4)" in said
        assert "called receive(float32, 5)" in said


def refuse_a_call(rank, size):
    """Rank 1 alone passes tensors that do not fit; it has called nothing then."""
    numbers = torch.ones(4)
    if rank == 1:
        with pytest.raises(ValueError):  # noqa: PT011  it is no fault of the engine
            dist.all_gather([torch.ones(3)] * size, numbers)
        assert last_fault() is None
    dist.all_reduce(numbers)
    return numbers.unique().tolist()


def test_a_call_that_is_refused_takes_no_number(world):
    assert [[2]] * 2 == world.run(refuse_a_call, size=2, deadline=20)


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
    """In order or not: at once."""
    for ok, outcome in world.outcomes(leave, how, size=size, deadline=20)[:-1]:
        assert ok
        (kind, *culprit_and_operation), seconds = outcome
        assert kind in kinds
        assert [size - 1, "all_reduce"] == culprit_and_operation
        assert 5 > seconds
