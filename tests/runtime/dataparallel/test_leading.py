# SPDX-License-Identifier: Apache-2.0
"""Threads that wait for collectives move the engine's bytes, and all operations proceed."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from random import Random

import pytest
import torch
import torch.distributed as dist
from engine_faults import fault_fields

LENGTHS = (1, 1_000, 30_000, 300_000)
SOON = timedelta(seconds=20)  # what is forgotten would take a minute


def sum_in_turn(group, size, seed):
    """Thirty sums, waited for in every way; the same lengths on all ranks."""
    lengths, waits = Random(seed), Random(seed)
    for _ in range(30):
        tensors = [torch.ones(lengths.choice(LENGTHS)) for _ in range(3)]
        first = dist.all_reduce(tensors[0], group=group, async_op=True)
        dist.all_reduce(tensors[1], group=group)
        last = dist.all_reduce(tensors[2], group=group, async_op=True)
        time.sleep(waits.choice((0, 0.001, 0.015)))
        last.wait()
        first.wait()
        assert all((tensor == size).all() for tensor in tensors)


def sum_in_threads(rank, size):
    groups = [dist.new_group(list(range(size)), timeout=SOON) for _ in range(3)]
    with ThreadPoolExecutor(len(groups)) as threads:
        ends = [threads.submit(sum_in_turn, group, size, n) for n, group in enumerate(groups)]
        for end in ends:
            end.result()


@pytest.mark.parametrize("hosts", ["aa", "ab", "aab", "abab"])
def test_threads_lead_by_turns(world, hosts):
    """Waiting callers beside asynchronous operations, in three groups at once."""
    world.run(sum_in_threads, hosts=hosts)


def begin_and_leave(rank, size):
    """An operation that was begun goes on while nobody waits for anything."""
    group = dist.new_group(list(range(size)), timeout=SOON)
    late = torch.ones(1_000_000)
    ended = threading.Event()
    if rank == 0:
        begun = dist.all_reduce(late, group=group, async_op=True)
        begun.get_future().then(lambda _: ended.set())
    dist.barrier()
    if rank > 0:
        dist.all_reduce(late, group=group)
        ended.set()
    assert ended.wait(SOON.total_seconds())
    return late[-1].item()


def test_who_leaves_forgets_nothing(world):
    assert [3.0] * 3 == world.run(begin_and_leave, size=3)


def wait_in_a_callback(rank, size):
    total = torch.ones(10)

    def add_again(future):
        more = torch.ones(5)
        dist.all_reduce(more)
        return more[0].item()

    work = dist.all_reduce(total, async_op=True)
    return work.get_future().then(add_again).wait()


def test_a_callback_may_wait(world):
    assert [2.0] * 2 == world.run(wait_in_a_callback, size=2)


def abort_while_another_waits(rank, size):
    ended = []

    def wait():
        try:
            dist.all_reduce(torch.ones(1))
        except dist.DistBackendError:
            ended.append(fault_fields())

    if rank == 0:
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.2)
        dist.group.WORLD.abort()
        waiting.join(SOON.total_seconds())
    else:
        time.sleep(0.5)
    return ended


def test_who_leads_hears_of_an_abort(world):
    """While it sleeps in the network."""
    ended, _ = world.run(abort_while_another_waits, size=2)
    assert [("aborted", 0, "")] == ended
