# SPDX-License-Identifier: Apache-2.0
"""Operations that carry a name are matched by it, whatever the order in which ranks call them."""

import random
import threading
import time
from functools import partial

import torch
from hvd_ranks import caught, initialized


def every_kind(hvd, rank, size, name):
    """Return (function of Horovod that starts an operation under this name, its result)."""
    one, rows = torch.full((size,), float(rank)), torch.full((rank + 1, 2), float(rank))
    total = size * (size - 1) / 2
    gathered = [float(each) for each in range(size) for _ in range(2 * each + 2)]
    in_place = torch.full((2, 2), float(rank))
    pair, mean = [one, one.int()], [total / size] * 4
    return [
        (partial(hvd.allreduce_async, one, op=hvd.Sum, name=name), [total] * size),
        (partial(hvd.allreduce_async_, in_place, name=f"{name}_"), mean),
        (partial(hvd.grouped_allreduce_async, pair, op=hvd.Max, name=f"{name}2"),
         [size - 1] * 2 * size),
        (partial(hvd.allreduce_async, torch.ones(3), op=hvd.Adasum, name=f"{name}a"), [1.0] * 3),
        (partial(hvd.allgather_async, rows, name=name), gathered),
        (partial(hvd.grouped_allgather_async, [one[:1], rows], name=f"{name}2"),
         [*map(float, range(size)), *gathered]),
        (partial(hvd.broadcast_async, one, 1, name=name), [1.0] * size),
        (partial(hvd.broadcast_async_, one.clone(), 2, name=f"{name}_"), [2.0] * size),
        (partial(hvd.alltoall_async, one, name=name), [*map(float, range(size))]),
        (partial(hvd.reducescatter_async, one, op=hvd.Sum, name=name), [total]),
    ]  # fmt: skip


def flat(result):
    tensors = result if isinstance(result, (list, tuple)) else [result]
    return [number for each in tensors for number in each.reshape(-1).tolist()]


def handles_in_other_orders(rank, size):
    with initialized() as hvd:
        calls = [each for name in "xy" for each in every_kind(hvd, rank, size, name)]
        order = [*range(len(calls))]
        random.Random(rank).shuffle(order)
        unnamed, handles = [], {}
        for place, number in enumerate(order):
            handles[number] = calls[number][0]()
            if place % 5 == 0:
                unnamed.append(hvd.allreduce_async(torch.tensor([place]), op=hvd.Sum))
        assert [place * size for place in range(0, len(calls), 5)] == [
            hvd.synchronize(each).item() for each in unnamed
        ]
        while not hvd.poll(handles[0]):
            time.sleep(0.001)
        for number, (_, expected) in enumerate(calls):
            assert expected == flat(hvd.synchronize(handles[number])), calls[number][0]
        return len(calls)


def test_handles_in_other_orders(world):
    """Each kind of call, in another order on each rank, beside operations without names."""
    assert [20] * 4 == world.run(handles_in_other_orders)


def threads_in_other_orders(rank, size):
    with initialized() as hvd:
        results = {}

        def reduce(number):
            tensor = torch.tensor([float(rank + number)], requires_grad=True)
            result = hvd.allreduce(tensor, op=hvd.Sum, name=f"t{number}")
            (result * number).backward()
            results[number] = result.item(), tensor.grad.item()

        order = [*range(8)]
        random.Random(rank).shuffle(order)
        threads = [threading.Thread(target=reduce, args=(each,)) for each in order]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return [results[number] for number in range(8)]


def test_threads_in_other_orders(world):
    """Threads start named operations and their gradients as they come."""
    expected = [(6.0 + 4 * number, 4.0 * number) for number in range(8)]

    assert [expected] * 4 == world.run(threads_in_other_orders)


def other_calls_of_a_name(rank, size):
    with initialized() as hvd:
        last = rank == size - 1
        calls = [
            partial(hvd.allreduce, torch.ones((3, 4) if last else (2, 6)), name="y"),
            partial(hvd.allreduce, torch.ones((3, 4) if last else (2, 6))),
            partial(hvd.allreduce, torch.ones(2, dtype=torch.int32 if last else None), name="y"),
            partial(hvd.allreduce, torch.ones(2), op=hvd.Max if last else hvd.Sum, name="y"),
            partial(hvd.allgather, torch.ones(1, 2 + last), name="y"),
            partial(hvd.broadcast, torch.ones(2), int(last), name="y"),
        ]
        texts = []
        for call in calls:
            error = caught(hvd.HorovodMismatchError, call)
            assert size == len(error.calls)
            texts.append(error.what)
            assert size == hvd.allreduce(torch.ones(2), op=hvd.Sum, name="y")[0]
        return texts


def test_other_calls_of_a_name_raise(world):
    """Shapes, dtypes, operations and roots are compared; the next call of the name works."""
    both = [
        ("allreduce(name='y', AVG, float32 (2, 6), cpu)", "(2, 6)", "(3, 4)"),
        ("allreduce(AVG, float32 (2, 6), cpu)", "(2, 6)", "(3, 4)"),
        ("allreduce(name='y', AVG, float32 (2,), cpu)", "AVG, float32", "SUM, int32"),
        ("allreduce(name='y', SUM, float32 (2,), cpu)", "SUM", "MAX"),
        ("allgather(name='y', (1, 2) float32)", "(1, 2)", "(1, 3)"),
        ("broadcast(name='y', (2,) float32, root 0)", "root 0", "root 1"),
    ]
    answers = world.run(other_calls_of_a_name)

    for first, texts in enumerate(zip(*answers, strict=True)):
        ours, part, other = both[first]
        theirs = ours.replace(part, other)
        assert [f"this rank has called {ours}, and rank 3 {theirs}"] * 3 == [*texts[:3]]
        assert f"this rank has called {theirs}, and rank 0 {ours}" == texts[3]


def named_while_ranks_join(rank, size):
    with initialized() as hvd:
        if rank == 0:
            last = hvd.join()
            return last, "", hvd.allreduce(torch.ones(1), op=hvd.Sum, name="one").item()
        names = ["one", "two"] if rank == 1 else ["two", "one"]
        handles = [hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name=each) for each in names]
        totals = [hvd.synchronize(each)[0].item() for each in handles]
        error = caught(hvd.HorovodInternalError, hvd.allgather, torch.ones(2), name="rows")
        hvd.join()
        return sum(totals), error.what, hvd.allreduce(torch.ones(1), op=hvd.Sum, name="one").item()


def test_names_while_ranks_join(world):
    """A rank that has joined answers named all-reduces, and other named calls say so."""
    joined, *others = world.run(named_while_ranks_join)
    assert (3, "", 4) == joined
    text = "allgather was called although rank 0 has joined"
    assert [(6, text, 4)] * 3 == others


def a_name_of_one_rank(rank, size):
    with initialized() as hvd:
        if rank == 1:
            return None
        error = caught(hvd.HorovodInternalError, hvd.allreduce, torch.ones(2, 3), name="only")
        return error.what, error.why[:7], error.rank


def test_a_name_of_one_rank(world):
    """If the other rank ends, the error has the call of the script, and no message about names."""
    call = "allreduce(name='only', (2, 3) float32, average) has not started"

    assert [(call, "rank 1 ", 1), None] == world.run(a_name_of_one_rank, size=2)
