# SPDX-License-Identifier: Apache-2.0
"""Order of operations on a device's tensors: which work they follow, and what waits for them."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import accelerator
import pytest
import test_device
import torch
import torch.distributed as dist

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}
NEVER = accelerator.NEVER
SUPPORT = Path(accelerator.__file__).parent


def run(processes, function, *args, size=2, **slots):
    return processes.run_ranks(function, *args, size=size, staging=SLOTS | slots)


def ones(count=5000, device=accelerator.NAME):
    return torch.ones(count, device=device)


def call_behind_held_work(rank, size):
    dist.all_reduce(ones().mul_(2))  # a GPU that loads a kernel first waits for those that run
    with accelerator.held_stream():
        x = ones().mul_(2)
        work = dist.all_reduce(x, async_op=True)
        on_cpu = torch.ones(3)
        behind = dist.all_reduce(on_cpu, async_op=True)
        is_early = work.is_completed() or behind.is_completed()
    work.wait()
    behind.wait()
    return is_early, x.cpu().unique().tolist(), on_cpu.tolist(), accelerator.take_stale_uses()


def test_the_call_returns_before_its_copies_run(device_processes):
    assert [(False, [4], [2, 2, 2], NEVER)] * 2 == run(device_processes, call_behind_held_work)


def wait_on_one_stream(rank, size):
    test_device.set_copy_bandwidth(100_000)
    other = torch.Stream(device=accelerator.NAME)
    x = ones(10_000)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    waiting = torch.accelerator.current_stream()
    seen = [work.is_completed(), waiting.query(), other.query()]
    waiting.synchronize()
    return seen, work.is_completed(), x.cpu().unique().tolist()


@accelerator.on_the_test_device("copies of a GPU cannot be slowed down")
def test_wait_lets_the_current_stream_wait_and_no_other(device_processes):
    assert [([False, False, True], True, [2])] * 2 == run(
        device_processes, wait_on_one_stream, staging_slots=16
    )


def use_streams(rank, size):
    """Calls on side streams, whose results another stream uses after wait()."""
    streams = [torch.Stream(device=accelerator.NAME) for _ in range(3)]
    totals = []
    for step in range(30):
        with streams[step % 3]:
            x = torch.full((3000,), float(step), device=accelerator.NAME)
            work = dist.all_reduce(x, async_op=True)
        with streams[(step + 1) % 3] as stream:
            work.wait()
            totals.append(x.sum())
            x.record_stream(stream)
            del x
    torch.accelerator.synchronize()
    expected = [3000.0 * size * step for step in range(30)]
    return expected == [total.item() for total in totals], accelerator.take_stale_uses()


def test_calls_and_waits_on_different_streams(device_processes):
    assert [(True, NEVER)] * 2 == run(device_processes, use_streams)


def continue_with_futures(rank, size):
    def double(future):
        return future.value()[0] * 2

    def reduce_again(future):
        again = dist.all_reduce(future.value()[0], async_op=True).get_future()
        return again.wait()[0]

    works = [dist.all_reduce(ones(), async_op=True).get_future() for _ in range(6)]
    futures = [each.then(double) for each in works] + [each.then(reduce_again) for each in works]
    results = [future.wait() for future in futures]
    modes = (
        dist.all_reduce(ones(3), async_op=True)
        .get_future()
        .then(lambda _: (torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    )
    values = [result.cpu().unique().tolist() for result in results]
    return values, modes.wait(), accelerator.take_stale_uses()


def test_callbacks_of_futures_see_results_and_may_call_collectives(device_processes):
    # reduce_again writes to the tensor that double() reads, so each of the first has a copy
    for values, modes, stale in run(device_processes, continue_with_futures):
        assert [[4]] * 6 == values[6:]
        assert (True, False) == modes
        assert NEVER == stale


def call_two_groups_in_two_orders(rank, size):
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    tensors = {(number, group): ones(1000) for number in range(4) for group in (0, 1)}
    order = sorted(tensors, key=lambda key: key[1], reverse=rank == 1)
    works = [dist.all_reduce(tensors[key], group=groups[key[1]], async_op=True) for key in order]
    for work in works:
        work.wait()
    return {tensor.cpu().unique().item() for tensor in tensors.values()}


def test_groups_may_have_another_order_on_each_rank(device_processes):
    """With fewer slots than operations."""
    assert [{2}] * 2 == run(device_processes, call_two_groups_in_two_orders)


def receive_before_sending(rank, size):
    taken = [torch.empty(1024, device=accelerator.NAME) for _ in range(20)]
    begin = time.monotonic()
    works = [dist.irecv(tensor, 1 - rank, tag=tag) for tag, tensor in enumerate(taken)]
    works += [dist.isend(ones(1024) * tag, 1 - rank, tag=tag) for tag in range(20)]
    for work in works:
        work.wait()
    seconds = time.monotonic() - begin
    return [tensor.cpu().unique().item() for tensor in taken], seconds, works[0]._source_rank()


def test_more_receives_than_slots_do_not_hold_up_sends(device_processes):
    for rank, (values, seconds, source) in enumerate(run(device_processes, receive_before_sending)):
        assert list(range(20)) == values
        assert 1 - rank == source
        assert seconds < 10


def leave_a_group(rank, size):
    group = dist.new_group([0, 1])
    x = ones()
    with accelerator.held_stream():
        x.mul_(3)
        work = dist.all_reduce(x, group=group, async_op=True)
        dist.destroy_process_group(group)
    work.wait()
    return x.cpu().unique().tolist()


def test_a_group_may_be_destroyed_before_its_operations_have_started(device_processes):
    assert [[6]] * 2 == run(device_processes, leave_a_group)


def call_in_modes(rank, size):
    with torch.inference_mode():
        inferred = ones()
        dist.all_reduce(inferred)
    learned = torch.ones(3, device=accelerator.NAME, requires_grad=True)
    dist.all_reduce(learned.detach())
    factor = torch.tensor(0.5, device=accelerator.NAME).mul_(3)
    scaled = ones(3)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(factor))
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    dist.barrier()
    dist.barrier(device_ids=[0])
    memory = dist.group.WORLD._get_backend(torch.device(accelerator.NAME)).allocate_tensor(
        5, dtype=torch.float32, device=torch.device(accelerator.second_device())
    )
    values = [each.detach().cpu().unique().tolist() for each in (inferred, learned, scaled)]
    return values, objects, memory.device == torch.device(accelerator.second_device())


def test_modes_factors_objects_and_barriers(device_processes):
    expected = ([[2], [2], [3]], [{"rank": 0}, {"rank": 1}], True)

    assert [expected] * 2 == run(device_processes, call_in_modes)


ONE_RANK = """
    import os, sys
    import accelerator, torch, torch.distributed as dist
    accelerator.load()
    import smdist.dataparallel.torch
    dist.init_process_group(f"cpu:smdist,{accelerator.NAME}:smdist", store=dist.HashStore(), rank=0,
                            world_size=1, device_id=torch.device(accelerator.NAME, 0))
    x = torch.ones(100_000, device=accelerator.NAME)
    dist.all_reduce(x)
    pid = os.fork()
    if pid == 0:
        try:
            dist.all_reduce(x)
        except RuntimeError as error:
            sys.exit("forked" not in str(error))
        sys.exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    dist.all_reduce(x, async_op=True)
    torch.accelerator.current_stream().synchronize()
    works = [dist.all_reduce(x.clone(), async_op=True) for _ in range(50)]
    if "keep" not in sys.argv:
        dist.destroy_process_group()
    print(x.sum().item())
"""


@pytest.mark.parametrize("end", ["keep", "destroy"])
def test_a_process_and_its_child_end_with_operations_in_flight(end):
    python = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ONE_RANK), end],
        env=os.environ | {"PYTHONPATH": python},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert (0, "100000.0\n") == (ended.returncode, ended.stdout), ended.stderr
