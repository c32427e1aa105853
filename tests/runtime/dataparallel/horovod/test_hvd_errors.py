# SPDX-License-Identifier: Apache-2.0
"""Wrong calls raise errors with fields, and the next call works; ranks may join."""

import os
import signal
import warnings

import pytest
import torch
from hvd_ranks import caught, initialized

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.horovod_timeline import start_if_requested


def wrong_arguments(rank, size):
    with initialized() as hvd:
        one = torch.ones(size)
        handle = hvd.allreduce_async(one, name="same")
        found = [
            caught(ValueError, hvd.allreduce_async, one, name="same"),
            caught(ValueError, hvd.allreduce, one, True, op=hvd.Sum),
            caught(ValueError, hvd.allreduce, one, op="sum"),
            caught(ValueError, hvd.allreduce, [1.0]),
            caught(ValueError, hvd.grouped_allreduce, []),
            caught(ValueError, hvd.broadcast, one, size),
            caught(ValueError, hvd.alltoall, torch.ones(size + 1)),
            caught(ValueError, hvd.alltoall, one, torch.full((size,), 2)),
            caught(ValueError, hvd.alltoall, one, torch.ones(size)),
            caught(ValueError, hvd.allgather, torch.tensor(1.0)),
            caught(ValueError, hvd.reducescatter, one, op=hvd.Max),
            caught(ValueError, hvd.sparse_allreduce_async, one, None, hvd.Sum),
            caught(ValueError, hvd.broadcast_object, lambda: 0),
            caught(ValueError, hvd.allgather_object, (lambda: 0) if rank == 1 else 0),
            caught(ValueError, hvd.synchronize, 10**9),
            caught(ValueError, hvd.synchronize, len),
            caught(ValueError, hvd.broadcast_parameters, 3, 0),
            caught(ValueError, hvd.ProcessSet, [0, 0]),
            caught(ValueError, hvd.add_process_set, [size]),
            caught(ValueError, hvd.add_process_set, range(size)),
        ]
        with warnings.catch_warnings(record=True) as found_warnings:
            warnings.simplefilter("always")
            assert size == hvd.allreduce(one, average=False)[0]
        assert [DeprecationWarning] == [each.category for each in found_warnings]
        hvd.synchronize(handle)
        assert 1 == hvd.allreduce(one)[0]
        return [(each.about[0], each.kind) for each in found]


def test_wrong_arguments(world):
    """Each error names the argument; no collective is left half started."""
    expected = [
        ("name", "twice"), ("average", "conflict"), ("op", "unknown"), ("tensor", "option"),
        ("tensor", "option"), ("root_rank", "option"), ("splits", "option"),
        ("splits", "difference"), ("splits", "option"), ("tensor", "scalar"), ("op", "option"),
        ("tensor", "option"), ("obj", "not_picklable"), ("obj", "not_picklable"),
        ("handle", "unknown"), ("handle", "function"),
        ("params", "option"), ("ranks", "option"), ("process_set", "option"),
        ("process_set", "twice"),
    ]  # fmt: skip
    assert [expected] * 4 == world.run(wrong_arguments)


def test_before_init():
    """A function that needs the other ranks says that init() is missing, and has its own name."""
    import smdist.dataparallel.torch.horovod as hvd

    one = torch.ones(1)
    layer = torch.nn.Parameter(one)
    calls = [
        (hvd.rank,), (hvd.cross_size,), (hvd.allreduce, one), (hvd.grouped_allreduce_async_, [one]),
        (hvd.allgather, one), (hvd.broadcast_, one, 0), (hvd.alltoall, one), (hvd.barrier,),
        (hvd.reducescatter_async, one), (hvd.join,), (hvd.broadcast_object, 1),
        (hvd.allgather_object, 1), (hvd.broadcast_parameters, {}, 0),
        (hvd.DistributedOptimizer, torch.optim.SGD([layer], 0.1)), (hvd.add_process_set, [0]),
        (hvd.sparse_allreduce_async, one.to_sparse(), None, hvd.Sum),
    ]  # fmt: skip
    for function, *arguments in calls:
        error = caught(OptionError, function, *arguments)
        assert ("too_early", (function.__name__,)) == (error.kind, error.about)
    assert ("SyncBatchNorm",) == caught(OptionError, hvd.SyncBatchNorm(1), one[None]).about
    with pytest.raises(AttributeError):
        _ = hvd.check_extension


def disagreements(rank, size):
    with initialized() as hvd:
        last = rank == size - 1
        calls = [
            (lambda: hvd.allreduce(torch.ones(4 + last))),
            (lambda: hvd.allreduce(torch.ones(4).to(torch.int32 if last else torch.float32))),
            (lambda: hvd.allreduce(torch.ones(4), op=hvd.Max if last else hvd.Sum)),
            (lambda: hvd.allgather(torch.ones(4, 2 + last))),
            (lambda: hvd.allgather(torch.ones(4).to(torch.int32 if last else torch.float32))),
            (lambda: hvd.broadcast(torch.ones(4 + last), 0)),
            (lambda: hvd.broadcast(torch.ones(4), int(last))),
            (lambda: hvd.alltoall(torch.ones(size, 1 + last))),
            (lambda: hvd.reducescatter(torch.ones(size + last))),
            (lambda: hvd.barrier() if last else hvd.allreduce(torch.ones(4))),
            (lambda: hvd.allgather(torch.ones(4)) if last else hvd.broadcast(torch.ones(4), 0)),
        ]
        kinds = []
        for call in calls:
            error = caught(hvd.HorovodMismatchError, call)
            assert isinstance(error, RuntimeError)
            kinds.append((error.kind, error.rank is not None))
            assert size == hvd.allreduce(torch.ones(3), op=hvd.Sum)[0]
        return kinds


def test_disagreements_raise_and_the_next_call_works(world):
    """Shapes, dtypes, operations, roots and kinds of collectives that differ."""
    assert [[("mismatch", True)] * 11] * 4 == world.run(disagreements)


def ranks_join(rank, size):
    with initialized() as hvd:
        results = []
        handles = [
            hvd.allreduce_async(torch.full((length,), float(rank + 1)), op=hvd.Sum)
            for length in range(1, 2 + 2 * rank)  # rank 0 has 1 batch, the last one 7
        ]
        results = [hvd.synchronize(each) for each in handles]
        assert [*range(1, 2 + 2 * rank)] == [each.numel() for each in results]
        last = hvd.join()
        after = hvd.allreduce(torch.ones(2), op=hvd.Sum)
        one = torch.ones(3)
        averages = [hvd.allreduce(one).tolist()[0] for _ in range(rank)]
        whole = hvd.allreduce(torch.tensor([4, 4])) if rank == size - 1 else None
        again = hvd.join()
        return [each[0].item() for each in results], last, after[0].item(), averages, again, whole


def test_ranks_join(world):
    """Ranks that have joined contribute zeros, until all have; then everything is as before."""
    sums = [10.0, 9.0, 9.0, 7.0, 7.0, 4.0, 4.0]
    averages = [0.75, 0.5, 0.25]
    for rank, answer in enumerate(world.run(ranks_join)):
        whole = torch.tensor([1, 1]) if rank == 3 else None
        assert (sums[: 1 + 2 * rank], 3, 4.0, averages[:rank], 3) == answer[:-1]
        assert whole is None or torch.equal(whole, answer[-1])


def join_and_others(rank, size):
    with initialized() as hvd:
        others = [
            (lambda: hvd.allgather(torch.ones(2))),
            (lambda: hvd.broadcast(torch.ones(2), 1)),
            (lambda: hvd.allreduce(torch.ones(2), op=hvd.Max)),
            (lambda: hvd.alltoall(torch.ones(size))),
            (lambda: hvd.barrier()),
        ]
        kinds = []
        for call in others:
            if rank > 0:
                for _ in range(2):
                    error = caught(hvd.HorovodInternalError, call)
                    kinds.append((error.kind, error.rank))
                assert size - 1 == hvd.allreduce(torch.ones(1), op=hvd.Sum)
            hvd.join()
            assert size == hvd.allreduce(torch.ones(1), op=hvd.Sum)
        joined_at_once = hvd.join()
        return kinds, joined_at_once


def test_other_collectives_fail_while_a_rank_has_joined(world):
    """Only sums and averages go on; the error names the rank that has joined."""
    assert [([("joined", 0)] * (10 if rank else 0), 3) for rank in range(4)] == world.run(
        join_and_others
    )


def join_and_disagreements(rank, size):
    with initialized() as hvd:
        found = []
        for name in (None, "x"):
            if rank > 0:
                last = rank == size - 1
                rows = torch.ones(3 if last else 2)
                error = caught(hvd.HorovodMismatchError, lambda: hvd.allreduce(rows, name=name))  # noqa: B023
                found.append((error.rank, [each["kind"] for each in error.calls]))
                assert size - 1 == hvd.allreduce(torch.ones(1), op=hvd.Sum, name=name)
            hvd.join()
            assert size == hvd.allreduce(torch.ones(1), op=hvd.Sum)
        return found


def test_disagreements_while_a_rank_has_joined(world):
    """Ranks whose calls differ raise at once, with and without a name, and the next call works."""
    kinds = ["join", "allreduce", "allreduce", "allreduce"]
    others = [[], *([(3, kinds)] * 2 for _ in (1, 2)), [(1, kinds)] * 2]

    assert others == world.run(join_and_disagreements)


def loses_a_rank(rank, size):
    with initialized() as hvd:
        hvd.allreduce(torch.ones(2))
        if rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        error = caught(hvd.HorovodInternalError, hvd.allreduce, torch.ones(1000))
        later = caught(hvd.HorovodInternalError, hvd.allgather, torch.ones(2))
        return error.kind, error.rank, later.rank


def test_lost_rank(world):
    """Ranks that are left get HorovodInternalError with the lost rank."""
    answers = world.outcomes(loses_a_rank, size=3)

    assert [(True, ("lost", 2, 2))] * 2 == answers[:2]


@pytest.mark.parametrize(
    ("variables", "about"),
    [
        ({"HOROVOD_TIMELINE": "/none/x.json"}, "HOROVOD_TIMELINE"),
        (
            {"HOROVOD_TIMELINE": "x.json", "HOROVOD_TIMELINE_MARK_CYCLES": "1"},
            "HOROVOD_TIMELINE_MARK_CYCLES",
        ),
    ],
)
def test_a_timeline_that_cannot_begin_names_the_variable(monkeypatch, variables, about):
    """The user has set the variable, and called no function with an argument."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError) as caught:
        start_if_requested(None, 0)

    assert (about,) == caught.value.about
