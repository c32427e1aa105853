# SPDX-License-Identifier: Apache-2.0
"""Groups come and go, workers fork and end, and nothing is left behind."""

import multiprocessing
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

CYCLES, WARM_UP = 100, 20
MAX_BYTES = 4 << 20  # for a hundred cycles; an engine's scratch memory alone would be more


def held():
    """Descriptors, threads, and resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    counts = [len(list(Path("/proc/self", what).iterdir())) for what in ("fd", "task")]
    return *counts, pages * os.sysconf("SC_PAGE_SIZE")


def grown(cycle):
    """What a hundred cycles leave behind, after some that fill the caches."""
    for number in range(WARM_UP):
        cycle(number)
    before = held()
    for number in range(WARM_UP, WARM_UP + CYCLES):
        cycle(number)
    return [after - earlier for after, earlier in zip(held(), before, strict=True)]


def remake_world(rank, size, folder):
    dist.destroy_process_group()

    def cycle(number):
        store = dist.FileStore(f"{folder}/{number}", size)
        dist.init_process_group("smdist", store=store, rank=rank, world_size=size)
        dist.all_reduce(torch.ones(1000))
        dist.barrier()
        dist.destroy_process_group()

    return grown(cycle)


def test_a_hundred_worlds_leave_nothing(world, tmp_path):
    for descriptors, threads, size_bytes in world.run(remake_world, str(tmp_path), size=2):
        assert 0 >= descriptors  # one may have been on its way out before
        assert 0 == threads
        assert MAX_BYTES > size_bytes


def remake_group(rank, size):
    dist.barrier()

    def cycle(number):
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1000), group=group)
        dist.destroy_process_group(group)

    return grown(cycle)


def test_a_hundred_groups_leave_nothing(world):
    for descriptors, threads, size_bytes in world.run(remake_group, size=2):
        assert 0 >= descriptors  # one may have been on its way out before
        assert 0 == threads
        assert MAX_BYTES > size_bytes


def many_groups(rank, size):
    dist.barrier()  # connects all
    before = held()
    groups = [dist.new_group(list(range(size))) for _ in range(64)]
    works = [dist.all_reduce(torch.ones(10), group=group, async_op=True) for group in groups]
    for work in works:
        work.wait()
    return [after - earlier for after, earlier in zip(held(), before, strict=True)]


def test_groups_share_sockets_and_threads(world):
    """64 groups with an operation on each add none."""
    for descriptors, threads, _ in world.run(many_groups, size=3):
        assert 0 >= descriptors  # a probe of a slow rank may have ended meanwhile
        assert 0 == threads


def load_and_reduce(rank, size):
    multiprocessing.current_process()._config["daemon"] = False  # which may have no children
    data = TensorDataset(torch.arange(64.0))
    total = torch.zeros(1)
    for _ in range(3):
        for (batch,) in DataLoader(data, 8, num_workers=2, multiprocessing_context="fork"):
            part = batch.sum().reshape(1)
            dist.all_reduce(part)
            total += part
    return total.item()


def test_data_loaders_fork_in_between(world):
    """Two workers, new in each epoch, while sums run."""
    assert [2 * 3 * 2016.0] * 2 == world.run(load_and_reduce, size=2, deadline=60)
