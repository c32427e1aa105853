# SPDX-License-Identifier: Apache-2.0
"""Names of operations: all ranks give the same ones, in the same order."""

from functools import partial

import torch
from hvd_ranks import caught, initialized


def names_in_other_orders(rank, size):
    with initialized() as hvd:
        texts = []
        order = "abc" if rank == 0 else "cba"
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
            for dtype in (torch.float32, torch.bfloat16, torch.int8):
                whole = torch.ones(3, dtype=dtype)
                calls = [partial(hvd.allreduce_async, whole, name=each, op=op) for each in order]
                handles = [call() for call in calls]
                for each, handle in zip(order, handles, strict=True):
                    if each == "b":
                        assert 3 == len(hvd.synchronize(handle))
                        continue
                    error = caught(hvd.HorovodMismatchError, partial(hvd.synchronize, handle))
                    assert {"a", "c"} == {call["name"] for call in error.calls}
                    texts.append(error.what)
        return texts


def test_names_in_other_orders_raise(world):
    """Equal tensors under other names are not mixed; the error has both names."""
    for texts in world.run(names_in_other_orders):
        assert 30 == len(texts)
        assert all("name='a'" in each and "name='c'" in each for each in texts)


def names_of_other_calls(rank, size):
    with initialized() as hvd:
        last = rank == size - 1
        name, one = "xy"[last], torch.ones(size)
        calls = [
            partial(hvd.allreduce, one, name=None if last else "x"),
            partial(hvd.grouped_allreduce, [one, one.int()], name=name),
            partial(hvd.allreduce, one, op=hvd.Adasum, name=name),
            partial(hvd.allgather, one, name=name),
            partial(hvd.broadcast, one, 0, name=name),
            partial(hvd.alltoall, one, name=name),
            partial(hvd.reducescatter, one, name=name),
        ]
        for call in calls:
            error = caught(hvd.HorovodMismatchError, call)
            assert "'x'" in error.what
            assert (size - 1) in ({error.rank} if not last else {size - 1, error.rank})
            assert size == hvd.allreduce(one, op=hvd.Sum, name=f"step {rank > size}")[0]
        handle = hvd.allreduce_async(one)
        assert size == hvd.allreduce(one, op=hvd.Sum, name="same")[0]
        assert 1 == hvd.synchronize(handle)[0]
        rows = caught(hvd.HorovodMismatchError, hvd.allgather, torch.ones(rank + 1, 2 + last))
        return rows.what


def test_names_count_in_every_collective(world):
    """Other names raise on all ranks, in each kind of call; the next call works."""
    *most, last = world.run(names_of_other_calls)
    for rank, text in enumerate(most):
        assert text == (
            f"this rank has called allgather(({rank + 1}, 2) float32),"
            " and rank 3 allgather((4, 3) float32)"
        )
    assert "this rank has called allgather((4, 3) float32), and rank 0 allgather" in last


def named_while_ranks_join(rank, size):
    with initialized() as hvd:
        if rank == 0:
            hvd.join()
            return 0, ""
        total = hvd.allreduce(torch.ones(2), op=hvd.Sum, name="one")[0].item()
        other = partial(hvd.allreduce, torch.ones(2), name=f"rank {rank == 1}")
        error = caught(hvd.HorovodMismatchError, other)
        hvd.join()
        return total, error.what


def test_names_while_ranks_join(world):
    """A rank that has joined answers named all-reduces, and no exchange waits for it."""
    joined, *others = world.run(named_while_ranks_join)
    assert (0, "") == joined
    for total, text in others:
        assert 3 == total
        assert "this rank has called allreduce(name='rank " in text
