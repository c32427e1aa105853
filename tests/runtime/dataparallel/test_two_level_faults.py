# SPDX-License-Identifier: Apache-2.0
"""Two levels: who takes them and who does not, and faults within a host."""

import contextlib
import io
import os
import signal
import time

import accelerator
import pytest
import test_device
import torch
import torch.distributed as dist
from device_faults import fault_of, later_fault_of, sum_on_all
from test_device import host_communicators

LIMITS = {"staging_slot_bytes": 4096, "staging_slots": 3, "two_level_bytes": 512}


STAND_IN = accelerator.on_the_test_device("NCCL cannot be made to fail")


def outcomes(processes, function, *args, hosts="aabb", **environ):
    return processes.outcomes(
        function,
        *args,
        size=len(hosts),
        staging=LIMITS,
        deadline=40,
        hosts=hosts,
        **environ,
    )


def ones(count=5000, device=accelerator.NAME):
    return torch.ones(count, device=device)


def sum_with(rank, size, faults):
    """The sum, how many operations the stand-in has had, and what this rank has printed."""
    host_communicators.faults.update(faults.get(rank, {}))
    x = ones()
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        dist.all_reduce(x)
        dist.all_reduce(ones())
    values = x.cpu().unique().tolist()
    return values, sum(host_communicators.num_operations()), printed.getvalue()


UNFIT = [
    ("aabb", {1: {"fault": "no library"}}, "rank 1 cannot use the GPUs of its host together: no"),
    ("aabb", {2: {"create": "no memory"}}, "did not start on rank 2: RuntimeError: no memory"),
    ("aabb", {0: {"identity": "x"}, 1: {"identity": "x"}}, "ranks 0 and 1 use the same GPU"),
    ("aab", {}, "the hosts have 1 to 2 ranks of the group"),
    ("abab", {}, "the ranks of each host do not follow each other"),
    ("ab", {}, "each host has one rank of the group"),
]


@STAND_IN
@pytest.mark.parametrize(("hosts", "faults", "reason"), UNFIT)
def test_unfit_groups_are_staged(device_processes, hosts, faults, reason):
    """Rank 0 prints once why."""
    ranks = outcomes(device_processes, sum_with, faults, hosts=hosts)
    lines = [printed for _, (_, _, printed) in ranks]

    assert [(True, ([len(hosts)], 0))] * len(hosts) == [(done, each[:2]) for done, each in ranks]
    assert 1 == lines[0].count(reason) == len(lines[0].splitlines())
    assert {""} == set(lines[1:])


@STAND_IN
@pytest.mark.parametrize(("hosts", "faults", "reason"), UNFIT[:3])
def test_unfit_groups_that_are_forced_raise(device_processes, hosts, faults, reason):
    ranks = outcomes(device_processes, sum_with, faults, hosts=hosts, SMDIST_GPU_COLLECTIVES="nccl")
    for done, text in ranks:
        assert not done
        assert "gpu_collectives is 'nccl'" in text
        assert reason in text


@STAND_IN
def test_the_choice_is_printed_once(device_processes):
    line = "smdist: collectives on GPU tensors: the stand-in within 2 hosts, smdist between them\n"
    for option in ("auto", "nccl"):
        ranks = outcomes(device_processes, sum_with, {}, SMDIST_GPU_COLLECTIVES=option)

        assert [(True, ([4], 4, line if rank == 0 else "")) for rank in range(4)] == ranks


def call_with_failing_level(rank, size, backend):
    sum_on_all(rank, size)
    if rank == 1:
        host_communicators.fail_operation(2, backend)

    def train():
        for _ in range(50):
            dist.all_reduce(ones())

    return later_fault_of(train), fault_of(lambda: dist.all_reduce(ones(), async_op=True).wait())


@STAND_IN
@pytest.mark.parametrize("backend", [0, 1])
def test_a_failed_level_is_an_error_on_every_rank(device_processes, backend):
    found = outcomes(device_processes, call_with_failing_level, backend)
    for done, answer in found:
        assert done, answer
        for name, text in answer:
            assert "DistBackendError" == name
            assert "a collective within the host of rank 1 failed on testdev:0" in text
    assert any("injected fault in" in text for _, answer in found for _, text in answer)


def slow_down():
    """Let the next operations take long: a GPU begins them late, the test device copies slowly."""
    if accelerator.IS_GPU:
        accelerator.sleep(1000)
    else:
        test_device.set_copy_bandwidth(100_000)


def kill_one(rank, size, calls_first):
    sum_on_all(rank, size)

    def until_the_end():
        if rank == 1:
            if calls_first:
                slow_down()
                dist.all_reduce(ones(50_000), async_op=True)
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        for work in [dist.all_reduce(ones(50_000), async_op=True) for _ in range(5)]:
            work.wait()

    return later_fault_of(until_the_end)


@pytest.mark.parametrize("calls_first", [False, True])
def test_a_killed_rank_is_an_error_on_the_others(device_processes, calls_first):
    ranks = outcomes(device_processes, kill_one, calls_first)

    assert (False, "died with exit code -9") == ranks[1]
    for done, answer in (ranks[0], *ranks[2:]):
        assert done, answer
        assert "DistBackendError" == answer[0]
        assert "rank 1" in answer[1]


def kill_one_of_several_groups(rank, size):
    """Rank 3 dies behind its calls of two groups, for which the others wait in either order."""
    second = dist.new_group(list(range(size)))
    dist.all_reduce(ones(), group=second)
    sum_on_all(rank, size)
    if rank == 3:
        slow_down()

    def until_the_end():
        calls = (None, second) * 3
        works = [dist.all_reduce(ones(50_000), group=each, async_op=True) for each in calls]
        if rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank % 2:
            works.reverse()
        for work in works:
            work.wait()

    return later_fault_of(until_the_end)


def test_a_killed_rank_ends_the_waits_of_all_groups(device_processes):
    ranks = outcomes(device_processes, kill_one_of_several_groups)

    assert (False, "died with exit code -9") == ranks[3]
    for done, answer in ranks[:3]:
        assert done, answer
        assert "DistBackendError" == answer[0]
        assert "rank 3" in answer[1]


def call_differently(rank, size):
    sum_on_all(rank, size)
    return later_fault_of(lambda: dist.all_reduce(ones(5000 + 1000 * (rank == 1))))


def test_different_lengths_are_an_error_on_every_rank(device_processes):
    for done, answer in outcomes(device_processes, call_differently):
        assert done, answer
        assert "rank 1 on" in answer[1]
        assert "while rank" in answer[1]


def call_late(rank, size):
    sum_on_all(rank, size)
    if rank == 1:
        time.sleep(4)
        return None
    group = dist.group.WORLD._get_backend(torch.device(accelerator.NAME))
    options = dist.AllreduceOptions()
    options.timeout = dist.constants.timedelta(seconds=1)
    x = ones()
    fault = later_fault_of(lambda: group.allreduce([x], options).wait())
    return fault, x.isnan().all().item()


def test_a_rank_that_does_not_call_is_named(device_processes):
    ranks = outcomes(device_processes, call_late)

    assert (True, None) == ranks[1]
    text = ranks[0][1][0][1]
    # The first timeout is that of a rank that waits for it, or for its neighbour on its host.
    assert any(f"waits for rank {rank} " in text for rank in (0, 1))
    assert ranks[0][1][1]  # the stream has gone on, with NaN


def call_wrongly(rank, size):
    dist.all_reduce(ones())
    other = (torch.accelerator.current_device_index() + 1) % torch.accelerator.device_count()
    faults = [
        fault_of(lambda: dist.all_reduce(ones(device=f"{accelerator.NAME}:{other}"))),
        fault_of(lambda: dist.all_gather_single(ones(3000), ones(1000))),
        fault_of(lambda: dist.all_reduce(ones(1).expand(3000))),
    ]
    x = ones()
    dist.all_reduce(x)
    return faults, x.cpu().unique().tolist()


def test_wrong_calls_raise_at_once_and_later_calls_work(device_processes):
    for done, answer in outcomes(device_processes, call_wrongly):
        assert done, answer
        assert {"ValueError"} == {name for name, _ in answer[0]}
        assert "but the earlier tensors of this process group were on" in answer[0][0][1]
        assert [4] == answer[1]


def abort_held_work(rank, size):
    sum_on_all(rank, size)

    def until_the_abort():
        backend = dist.group.WORLD._get_backend(torch.device(accelerator.NAME))
        if rank == 1:
            with accelerator.held_stream():
                work = dist.all_reduce(ones().mul_(2), async_op=True)
                backend.abort()
        else:
            work = dist.all_reduce(ones(), async_op=True)
        work.wait()

    return later_fault_of(until_the_abort)


def test_abort_ends_operations_that_have_not_started(device_processes):
    for done, answer in outcomes(device_processes, abort_held_work):
        assert done, answer
        assert "the group was aborted by rank 1" in answer[1]
