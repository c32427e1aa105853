# SPDX-License-Identifier: Apache-2.0
"""Short forms of rows of the table of faults that no other test has."""

import os
import shutil
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from engine_faults import fault_fields

from benchmarks.faults.play import play
from benchmarks.faults.rows import ROWS
from benchmarks.faults.torchrun_row import torchrun_restarts
from benchmarks.harness.hosts import EmulatedHosts


def end_by(how):
    if how == "fork" and os.fork() == 0:
        time.sleep(60)  # until the test's world ends
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL if how == "fork" else signal.SIGTERM)


def lose_a_rank(rank, size, how):
    dist.all_reduce(torch.ones(1000))
    if rank == size - 1:
        end_by(how)
    start = time.monotonic()
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(100_000))
    return fault_fields("kind", "culprit"), time.monotonic() - start


@pytest.mark.parametrize("how", ["SIGTERM", "fork"])
def test_a_rank_that_ends_is_named(world, how):
    """By a signal without a handler; or while a forked child of it lives on."""
    for ok, found in world.outcomes(lose_a_rank, how, size=3, deadline=20)[:-1]:
        assert ok, found
        assert ("lost", 2) == found[0]
        assert found[1] < 5


def stop_a_rank(rank, size):
    pids = [None] * size
    dist.all_gather_object(pids, os.getpid())
    if rank == 0:
        os.kill(pids[1], signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (pids[1], signal.SIGCONT)).start()
    for _ in range(10):
        dist.all_reduce(numbers := torch.ones(1000))
    return numbers[0].item()


def test_a_stopped_process_goes_on(world):
    assert [2.0, 2.0] == world.run(stop_a_rank, size=2, deadline=30)


def stop_within_an_operation(rank, size, folder):
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=2))
    dist.all_reduce(torch.ones(20_000_000), group=group)  # connects the ranks
    if rank == size - 1:
        Path(folder, "pid").write_text(str(os.getpid()))
    dist.barrier()
    work = dist.all_reduce(torch.ones(20_000_000), group=group, async_op=True)
    if rank == size - 1:
        time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGSTOP)
        return None
    try:
        work.wait()
    except dist.DistBackendError:
        return fault_fields()
    finally:
        if rank == 0:
            time.sleep(1)  # the others take the fault of the rank that reports it first
            os.kill(int(Path(folder, "pid").read_text()), signal.SIGCONT)


@pytest.mark.parametrize("hosts", ["", "abc"], ids=["one host", "three hosts"])
def test_a_rank_that_stops_within_an_operation_is_named(world, tmp_path, hosts):
    """All ranks have posted the operation, and every one waits for data of all others."""
    found = world.run(stop_within_an_operation, str(tmp_path), size=3, hosts=hosts, deadline=30)

    assert ("timeout", 2, "all_reduce") == found[0] == found[1]


def go_on_without(rank, size, folder):
    dist.all_reduce(torch.ones(1000))
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(1000))
    dist.destroy_process_group()
    store = dist.FileStore(f"{folder}/store", size - 1)
    dist.init_process_group("smdist", store=store, rank=rank, world_size=size - 1)
    dist.all_reduce(numbers := torch.ones(1000))
    return numbers[0].item()


def test_survivors_make_a_new_world(world, tmp_path):
    outcomes = world.outcomes(go_on_without, str(tmp_path), size=3, deadline=20)

    assert [(True, 2.0), (True, 2.0)] == outcomes[:2]


def start_again(rank, size):
    with pytest.raises(ValueError):  # noqa: PT011 - torch says that the group exists
        dist.init_process_group("smdist")
    dist.all_reduce(numbers := torch.ones(1000))
    return numbers[0].item()


def test_a_second_start_is_refused_and_harms_nothing(world):
    assert [2.0, 2.0] == world.run(start_again, size=2, deadline=20)


# Partitions of three lengths, each in three directions: of each length one.
LEFT_TO_MAKE_FAULTS = {
    f"partition of {length}"
    for length in (
        "5 s, both ways", "5 s, one way, from the host",
        "15 s, one way, to the host", "15 s, one way, from the host",
        "40 s, both ways", "40 s, one way, to the host",
    )
}  # fmt: skip
PLAYED = [each for each in ROWS if each.test.endswith("::test_row_on_three_hosts")]


def test_rows_that_are_left_to_make_faults_exist():
    assert LEFT_TO_MAKE_FAULTS < {each.name for each in PLAYED}


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", [each for each in PLAYED if each.name not in LEFT_TO_MAKE_FAULTS],
    ids=lambda row: row.name,
)  # fmt: skip
def test_row_on_three_hosts(row):
    """The row itself, with network namespaces, real launchers and one host less."""
    if os.geteuid() != 0 or not shutil.which("iptables") or not shutil.which("ip"):
        pytest.skip("network namespaces need root, iproute2 and iptables")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")  # others play rows too
    with EmulatedHosts(3, "10gbit", name=f"fr{worker}", network=f"10.89.{worker}") as emulated:
        (seen,) = play([row], "torch", emulated, threading.Lock())

    assert [] == seen.complaints, seen.stacks


@pytest.mark.slow
def test_torchrun_restarts_ranks():
    assert [0] == torchrun_restarts("torch").codes
