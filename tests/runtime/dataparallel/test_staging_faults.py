# SPDX-License-Identifier: Apache-2.0
"""Faults while tensors of a device are staged: wrong calls, failed copies, memory that ends."""

import os
import signal
import time

import accelerator
import pytest
import test_device
import torch
import torch.distributed as dist
from device_faults import fault_of, later_fault_of

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}


def outcomes(processes, function, *args, size=2, **slots):
    return processes.outcomes(function, *args, size=size, staging=SLOTS | slots, deadline=40)


def ones(count=5000, device=accelerator.NAME):
    return torch.ones(count, device=device)


def call_wrongly(rank, size):
    faults = [
        fault_of(lambda: dist.all_gather([ones(3), torch.ones(3)], ones(3))),
        fault_of(lambda: dist.all_gather([ones(2), ones(2)], ones(3))),
        fault_of(lambda: dist.all_gather([ones(3)], ones(3))),
        fault_of(lambda: dist.all_reduce(ones(1).expand(3))),
    ]
    x = ones()
    dist.all_reduce(x)
    return faults, x.cpu().unique().tolist()


def call_while_a_graph_is_captured(rank, size):
    x = ones()
    work = dist.all_reduce(x, async_op=True)
    y = ones()
    test_device.set_capturing(True)
    faults = [fault_of(lambda: dist.all_reduce(y)), fault_of(work.wait)]
    test_device.set_capturing(False)
    work.wait()
    dist.all_reduce(y)
    return faults, x.cpu().unique().tolist(), y.cpu().unique().tolist()


@accelerator.on_the_test_device("a capture on a GPU ends with an error after these calls")
def test_calls_and_waits_while_a_graph_is_captured_raise(device_processes):
    for done, (faults, *values) in outcomes(device_processes, call_while_a_graph_is_captured):
        assert done
        assert [[2], [2]] == values
        for kind, text in faults:
            assert "ValueError" == kind
            assert "captures a graph" in text
            assert "Capture the graph without collectives" in text


def call_with_two_devices(rank, size):
    second = ones(3, accelerator.second_device())
    return fault_of(lambda: dist.all_gather([ones(3), second], ones(3)))


@accelerator.on_the_test_device("a machine may have one GPU alone")
def test_tensors_of_two_devices_in_one_call_raise(device_processes):
    for done, (kind, _) in outcomes(device_processes, call_with_two_devices):
        assert done
        assert "ValueError" == kind


def test_wrong_calls_raise_at_once_and_later_calls_work(device_processes):
    for done, answer in outcomes(device_processes, call_wrongly):
        assert done, answer
        assert {"ValueError"} == {kind for kind, _ in answer[0]}
        assert [2] == answer[1]


def call_with_failing_copies(rank, size, kind, number):
    if rank == 1:
        test_device.fail_copy(number, kind)

    def train():
        for _ in range(50):
            x = ones()
            dist.all_reduce(x)
            del x

    return later_fault_of(train), fault_of(lambda: dist.all_reduce(ones(), async_op=True).wait())


FAILING_COPIES = accelerator.on_the_test_device("copies of a GPU cannot be made to fail")
LITTLE_MEMORY = accelerator.on_the_test_device("memory pinned by CUDA has no limit")


@FAILING_COPIES
@pytest.mark.parametrize("number", [1, 9])
def test_a_failed_copy_to_the_host_is_an_error_on_every_rank(device_processes, number):
    kind = test_device.COPY_TO_HOST
    for done, answer in outcomes(device_processes, call_with_failing_copies, kind, number):
        assert done, answer
        for name, text in answer:
            assert "DistBackendError" == name
            assert "a copy between testdev:0 of rank 1 and the host failed" in text
            assert "injected fault" in text


@FAILING_COPIES
def test_a_failed_copy_to_the_device_is_an_error_on_every_rank(device_processes):
    kind = test_device.COPY_TO_DEVICE
    ranks = outcomes(device_processes, call_with_failing_copies, kind, 5)

    assert [True, True] == [done for done, _ in ranks], ranks
    assert "a copy between testdev:0 of rank 1 and the host failed" in ranks[0][1][0][1]
    assert "injected fault" in ranks[1][1][0][1]


def call_without_pinned_memory(rank, size, pinned_bytes):
    if rank == 1:
        test_device.set_pinned_limit(pinned_bytes)
    x = ones(20_000)
    dist.all_reduce(x)
    return x.cpu().unique().tolist()


def raise_without_pinned_memory(rank, size):
    return later_fault_of(lambda: call_without_pinned_memory(rank, size, 0))[1]


@LITTLE_MEMORY
def test_no_pinned_memory_is_an_error_on_every_rank(device_processes):
    for done, answer in outcomes(device_processes, raise_without_pinned_memory):
        assert done, answer
        assert "testdev:0 of rank 1 and the host failed: testdev error: out of pinned" in answer


@LITTLE_MEMORY
def test_little_pinned_memory_is_enough(device_processes):
    assert [(True, [2])] * 2 == outcomes(device_processes, call_without_pinned_memory, 4096)


def call_without_device_memory(rank, size):
    x = torch.ones(1 << 21, 2, device=accelerator.NAME)[:, 0]  # its copy fits into no cached block
    fault = None
    if rank == 1:
        torch.accelerator.empty_cache()
        accelerator.set_memory_limit(torch.accelerator.memory_reserved())
        fault = fault_of(lambda: dist.all_reduce(x))
        accelerator.set_memory_limit(1 << 30)
    dist.all_reduce(x)
    return fault, x.cpu().unique().tolist()


def test_no_device_memory_is_an_error_of_the_call(device_processes):
    ranks = outcomes(device_processes, call_without_device_memory, staging_slot_bytes=1 << 20)

    assert (True, (None, [2])) == ranks[0]
    assert "OutOfMemoryError" == ranks[1][1][0][0]
    assert [2] == ranks[1][1][1]


def slow_down():
    """Let the next operations take a second: a GPU copies late, the test device slowly."""
    if accelerator.IS_GPU:
        accelerator.sleep(1000)
    else:
        test_device.set_copy_bandwidth(1_000_000)


def kill_one(rank, size):
    dist.all_reduce(ones())
    slow_down()
    works = [dist.all_reduce(ones(50_000), async_op=True) for _ in range(5)]
    if rank == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    return later_fault_of(lambda: [work.wait() for work in works])


def test_a_killed_rank_is_an_error_on_the_others(device_processes):
    ranks = outcomes(device_processes, kill_one, size=3)

    assert (False, "died with exit code -9") == ranks[1]
    for done, answer in (ranks[0], ranks[2]):
        assert done, answer
        assert "DistBackendError" == answer[0]
        assert "rank 1" in answer[1]


def abort_held_work(rank, size):
    backend = dist.group.WORLD._get_backend(torch.device(accelerator.NAME))
    if rank == 1:
        with accelerator.held_stream():
            x = ones().mul_(2)
            work = dist.all_reduce(x, async_op=True)
            backend.abort()
    else:
        work = dist.all_reduce(ones(), async_op=True)
    return later_fault_of(work.wait)


def test_abort_ends_operations_that_have_not_started(device_processes):
    for done, answer in outcomes(device_processes, abort_held_work):
        assert done, answer
        assert "the group was aborted by rank 1" in answer[1]


def call_after_the_end(rank, size):
    dist.all_reduce(ones())
    group = dist.group.WORLD._get_backend(torch.device(accelerator.NAME))
    pending = [group.allreduce([ones()]) for _ in range(3)] if rank == 0 else []
    if rank == 0:
        torch.accelerator.synchronize()
    dist.destroy_process_group()
    faults = [fault_of(work.wait) for work in pending]
    return (
        faults,
        fault_of(lambda: group.allreduce([ones()])),
        fault_of(lambda: group.allreduce([torch.ones(3)])),
    )


def test_calls_after_the_shutdown_raise(device_processes):
    for done, (pending, on_device, on_cpu) in outcomes(device_processes, call_after_the_end):
        assert done
        assert on_cpu == on_device
        assert all("DistBackendError" == name for name, _ in pending)


def disagree_about_the_length(rank, size, count, kind):
    """Rank 1 passes a longer tensor, which is divided into more pieces."""
    mine = ones(count + 3000 * rank)
    calls = {
        "all_reduce": lambda: dist.all_reduce(mine),
        "coalesced": lambda: (
            dist.group.WORLD._get_backend(mine.device).allreduce_coalesced([ones(10), mine]).wait()
        ),
        "all_gather": lambda: dist.all_gather([torch.empty_like(mine) for _ in range(size)], mine),
        "host": lambda: dist.all_reduce(torch.ones(count + rank)),
    }
    kinds = []
    for _ in range(2):
        kinds.append(fault_of(calls[kind]) if kind == "host" else later_fault_of(calls[kind]))
        x = ones()
        dist.all_reduce(x)
        kinds.append(x.cpu().unique().tolist())
    return kinds


@pytest.mark.parametrize("kind", ["all_reduce", "coalesced", "all_gather", "host"])
def test_ranks_that_disagree_about_the_length_end_one_call(device_processes, kind):
    """Another number of pieces on one rank: the next call has the same number on all."""
    ranks = outcomes(device_processes, disagree_about_the_length, 3072, kind, size=2)
    for done, answer in ranks:
        assert done, answer
        first, sum_after, second, sum_at_last = answer
        for name, said in (first, second):
            assert "ValueError" == name
            assert "rank 0 " in said
            assert "rank 1 " in said
        assert [2] == sum_after == sum_at_last
