# SPDX-License-Identifier: Apache-2.0
"""The adapter counts operations, and the time in which one of a kind is under way."""

import time

import pytest
import torch
import torch.distributed as dist

import smdist.dataparallel.torch as sdp

HOLD = 0.2


def overlap(rank, size):
    """Rank 1 comes HOLD seconds after rank 0 has begun five sums."""
    token, sums = torch.zeros(1), [torch.ones(100_000) for _ in range(5)]
    dist.all_reduce(token)
    before = sdp._C.activity("all_reduce")
    start = time.perf_counter()
    if rank == 0:
        works = [dist.all_reduce(each, async_op=True) for each in sums]
        while time.perf_counter() - start < HOLD:
            pass
        dist.send(token, 1)
    else:
        dist.recv(token, 0)
        works = [dist.all_reduce(each, async_op=True) for each in sums]
    for work in works:
        work.wait()
    seconds = time.perf_counter() - start
    after, later = sdp._C.activity("all_reduce"), sdp._C.activity("all_reduce")
    assert after == later  # nothing is under way
    return after[0] - before[0], after[1] - before[1], seconds


def test_operations_that_overlap_count_once(world):
    """Waiting for a late rank counts, and never more time than there was."""
    (operations, busy, seconds), (_, late, _) = world.run(overlap, size=2)

    assert 5 == operations
    assert HOLD <= busy <= seconds
    assert 0 < late < busy


KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier")


def activities():
    return {kind: sdp._C.activity(kind) for kind in KINDS}


def counted(operation):
    """How many operations of each kind that was; and nothing is under way any more."""
    before = activities()
    operation()
    after = activities()
    assert after == activities()
    return {kind: after[kind][0] - before[kind][0] for kind in KINDS if after[kind] != before[kind]}


def kinds(rank, size):
    parts, whole = torch.ones(8), torch.ones(8 * size)
    return [
        counted(lambda: dist.all_reduce(parts)),
        counted(lambda: dist.all_reduce(torch.ones(4, 6).t())),
        counted(lambda: dist.all_reduce_coalesced([torch.ones(3), torch.ones(4)])),
        counted(lambda: dist.reduce_scatter_tensor(parts, whole)),
        counted(lambda: dist.all_gather_into_tensor(whole, parts)),
        counted(lambda: dist.broadcast(parts, 0)),
        counted(dist.barrier),
    ]


def test_each_kind_of_operation_is_counted_apart(world):
    """Also one whose output is copied back, and several that are one call."""
    expected = [
        {"all_reduce": 1},
        {"all_reduce": 1},
        {"all_reduce": 2},
        {"reduce_scatter": 1},
        {"all_gather": 1},
        {"broadcast": 1},
        {"barrier": 1},
    ]

    assert [expected] * 2 == world.run(kinds, size=2)


def fail(rank, size):
    dist.all_reduce(torch.ones(1))
    before = sdp._C.activity("all_reduce")
    errors = 0
    if rank == 0:
        for tensor in (torch.ones(1), torch.ones(1)):  # rank 1 is gone; the engine has ended
            try:
                dist.all_reduce(tensor)
            except dist.DistBackendError:
                errors += 1
    after, later = sdp._C.activity("all_reduce"), sdp._C.activity("all_reduce")
    return errors, after[0] - before[0], after == later


def test_operations_that_fail_have_ended(world):
    """A sum that a rank never joins, and one of an engine that has failed."""
    assert (2, 2, True) == world.run(fail, size=2)[0]


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'all_reduces'"):
        sdp._C.activity("all_reduces")
