# SPDX-License-Identifier: Apache-2.0
"""wait() lets the current stream wait, and the host go on, also if an operation fails later."""

import time
from datetime import timedelta

import pytest
import test_device
import torch
import torch.distributed as dist

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}
HOST = {"wait_blocks_host": True}
NEVER = test_device.StaleUses(device=0, pinned=0)


def outcomes(processes, function, *args, size=2, **slots):
    return processes.outcomes(function, *args, size=size, staging=SLOTS | slots, deadline=40)


def run(processes, function, *args, size=2, **slots):
    return processes.run_ranks(function, *args, size=size, staging=SLOTS | slots, deadline=40)


def ones(count=5000):
    return torch.ones(count, device="testdev")


def store():
    return dist.distributed_c10d._get_default_store()


def wait_before_the_peer_calls(rank, size):
    """Rank 1 calls after rank 0 has waited, so a wait() that blocks the host never ends."""
    if rank == 1:
        store().wait(["rank 0 has waited"])
    x, y, z = ones(), ones(), ones()
    dist.all_reduce(x)
    dist.all_reduce(y, async_op=True).wait()
    dist.all_reduce(z, async_op=True).block_current_stream()
    future = dist.all_reduce(x, async_op=True).get_future()
    plus_one = future.then(lambda done: done.value()[0] + 1)
    future.wait()
    total = x.sum() + y.sum() + z.sum() + plus_one.wait().sum()
    if rank == 0:
        is_early = not torch.testdev.current_stream().query()
        store().set("rank 0 has waited", "")
    else:
        is_early = True
    return is_early, total.item() / 5000, test_device.take_stale_uses()


def test_wait_and_futures_do_not_block_the_host(device_processes):
    assert [(True, 4 + 2 + 2 + 5, NEVER)] * 2 == run(device_processes, wait_before_the_peer_calls)


def wait_for_a_late_peer(rank, size):
    time.sleep(0.3 * rank)
    x = ones()
    begin = time.monotonic()
    dist.all_reduce(x)
    return time.monotonic() - begin > 0.2, x.cpu().unique().tolist()


def test_wait_blocks_the_host_where_the_option_says_so(device_processes):
    (is_blocked, values), (_, others) = run(device_processes, wait_for_a_late_peer, **HOST)

    assert is_blocked
    assert [2] == values == others


def wait_on_a_shared_queue(rank, size):
    test_device.share_queues(True)
    x = ones()
    for _ in range(3):
        dist.all_reduce(x)
        x += 1
    return x.cpu().unique().tolist()


def test_wait_blocks_the_host_where_a_waiting_stream_holds_up_copies(device_processes):
    assert [[15]] * 2 == run(device_processes, wait_on_a_shared_queue)


def wait_on_a_queue_for_each_priority(rank, size):
    """The second call waits for the caller's stream, which waits for the results of the first."""
    dist.all_reduce(ones())  # makes the slots
    torch.accelerator.synchronize()
    test_device.share_queues(True, for_each_priority=True)
    with test_device.held_stream():
        x = ones()
        for _ in range(3):
            dist.all_reduce(x)
            x += 1
    return x.cpu().unique().tolist()


def test_copies_to_the_host_hold_up_no_earlier_results(device_processes):
    """Though both streams of copies share one queue of the device, and wait() does not block."""
    assert [[15]] * 2 == run(device_processes, wait_on_a_queue_for_each_priority)


def wait_for_a_peer_that_never_calls(rank, size):
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 1:
        store().wait(["rank 0 has ended"])
        return True, "", ""
    x = ones()
    dist.all_reduce(x, group=group)
    torch.accelerator.synchronize()
    with pytest.raises(dist.DistBackendError) as raised:
        dist.all_reduce(ones(), group=group)
    is_nan = x.isnan().all().item()
    store().set("rank 0 has ended", "")
    return is_nan, str(raised.value), test_device.take_stale_uses()


def test_a_stream_goes_on_after_a_timeout_with_nan_and_the_next_call_raises(device_processes):
    is_nan, text, stale = outcomes(device_processes, wait_for_a_peer_that_never_calls)[0][1]

    assert is_nan
    assert "rank 1" in text
    assert NEVER == stale


def fail_and_destroy(rank, size):
    if rank == 1:
        store().wait(["rank 0 has waited"])
        dist.group.WORLD._get_backend(torch.device("testdev")).abort()
        return ""
    dist.all_reduce(ones())
    store().set("rank 0 has waited", "")
    torch.accelerator.synchronize()
    with pytest.raises(dist.DistBackendError) as raised:
        dist.destroy_process_group()
    return str(raised.value)


def test_the_shutdown_raises_an_error_that_no_call_has_raised(device_processes):
    (done, text), _ = outcomes(device_processes, fail_and_destroy)

    assert done, text
    assert "the group was aborted by rank 1" in text


def wait_with_a_timeout(rank, size):
    if rank == 1:
        store().wait(["rank 0 has waited"])
        dist.all_reduce(ones())
        return ""
    work = dist.all_reduce(ones(), async_op=True)
    with pytest.raises(RuntimeError) as raised:
        work.wait(timedelta(milliseconds=100))
    store().set("rank 0 has waited", "")
    work.wait()
    return str(raised.value)


def test_wait_with_a_timeout_blocks_the_host_and_raises(device_processes):
    assert "timed out" in run(device_processes, wait_with_a_timeout)[0].lower()


def receive_from_any(rank, size):
    x = torch.zeros(3, device="testdev")
    if rank == 0:
        return dist.recv(x), x.tolist()
    dist.send(x + 7, 0)
    return None


def test_a_receive_from_any_rank_returns_the_rank(device_processes):
    assert (1, [7, 7, 7]) == run(device_processes, receive_from_any)[0]


def step():
    works = [dist.all_reduce(ones(20_000), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()


def allocate_before_streams_wait(rank, size):
    step()
    before = test_device.pinned_allocations()
    for _ in range(20):
        step()
    torch.accelerator.synchronize()
    return test_device.pinned_allocations() - before


def test_no_slot_is_allocated_while_streams_wait(device_processes):
    """An allocation may wait for streams, and these for the thread that allocates."""
    assert [0, 0] == run(device_processes, allocate_before_streams_wait)


def fail_a_last_copy(rank, size):
    x = ones(500)
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    if rank == 1:
        test_device.fail_copy(1, test_device.COPY_TO_DEVICE)
        dist.all_reduce(x)
        store().wait(["rank 0 knows"])
        return "", 0.0
    dist.all_reduce(x)
    begin = time.monotonic()
    work = dist.all_reduce(x, async_op=True)
    with pytest.raises(dist.DistBackendError) as raised:
        work.wait(timedelta(seconds=30))
    seconds = time.monotonic() - begin
    store().set("rank 0 knows", "")
    return str(raised.value), seconds


def test_a_failed_copy_to_the_device_is_an_error_without_another_call(device_processes):
    (done, answer), _ = outcomes(device_processes, fail_a_last_copy)

    assert done, answer
    assert "a copy between testdev:0 of rank 1 and the host failed" in answer[0]
    assert answer[1] < 10


def reduce_after_a_failed_kernel(rank, size):
    x = ones()
    if rank == 1:
        x = x[torch.tensor([123_456])]
    dist.all_reduce(x)
    torch.accelerator.synchronize(1)
    work = dist.all_reduce(ones(), async_op=True)
    work.wait(timedelta(seconds=30))


def test_an_error_on_the_callers_stream_is_an_error_on_every_rank(device_processes):
    for done, answer in outcomes(device_processes, reduce_after_a_failed_kernel):
        assert not done
        assert "a copy between testdev:0 of rank 1 and the host failed" in answer
