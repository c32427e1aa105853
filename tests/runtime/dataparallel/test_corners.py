# SPDX-License-Identifier: Apache-2.0
"""Callbacks that wait, forks, groups of other backends: what real programs do."""

import os
import resource
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist


def reduce_expanded(rank, size):
    with pytest.raises(ValueError, match="contiguous"):
        dist.all_reduce(torch.zeros(1).expand(4))
    total = torch.ones(2)
    dist.all_reduce(total)
    return total.tolist()


def test_an_output_that_shares_its_memory_is_refused(world):
    """expand() makes many elements of one; the group works on."""
    assert [[2.0, 2.0]] * 2 == world.run(reduce_expanded, size=2)


def read_at_once(rank, size):
    early = 0
    for _ in range(5000):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        future = work.get_future()
        work.wait()
        early += not future.done()
    return early


def test_a_future_is_complete_when_wait_returns(world):
    """torch's Reducer reads it then, where DDP's join() counts the ranks that go on."""
    assert [0] == world.run(read_at_once, size=1)


def destroy_in_callback(rank, size):
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    future.then(lambda _: dist.destroy_process_group()).wait()
    return dist.is_initialized()


def test_a_callback_may_destroy_the_group(world):
    """The thread that ends the engine is one of its own."""
    assert [False, False] == world.run(destroy_in_callback, size=2)


def destroy_with_pending(rank, size):
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.all_reduce(torch.ones(2), group=group, async_op=True)
    dist.destroy_process_group()
    return dist.is_initialized()


def test_a_group_with_pending_work_can_be_destroyed(world):
    """What is pending fails; nothing is left that would stop a new start."""
    assert [False, False] == world.run(destroy_with_pending, size=2)


def wait_very_long(rank, size):
    group = dist.new_group([0], timeout=timedelta(days=365 * 300))
    total = torch.ones(2)
    dist.all_reduce(total, group=group)
    return total.tolist()


def test_a_timeout_of_centuries_is_long(world):
    """It does not overflow into the past."""
    assert [[1.0, 1.0]] == world.run(wait_very_long, size=1)


def under_gloo(rank, size, store):
    """Leave the group the world made; make a gloo one with two smdist groups in it."""
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    sums = []
    for members in ([0, 1], [1, 2], [0, 1]):
        group = dist.new_group(members, backend="smdist")
        if rank in members:
            total = torch.tensor([10.0**rank])
            dist.all_reduce(total, group=group)
            sums.append(total.item())
            dist.destroy_process_group(group)
    return sums


def test_groups_under_another_default_backend(world, tmp_path):
    """Each smdist group has an engine of its own, also one made again."""
    sums = world.run(under_gloo, str(tmp_path / "store"), size=3)

    assert [[11.0, 11.0], [11.0, 110.0, 11.0], [110.0]] == sums


def fork_and_die(rank, size):
    dist.barrier()
    if rank == 1:
        if os.fork() == 0:
            time.sleep(20)  # as a DataLoader worker whose rank is killed
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1000))
    except dist.DistBackendError:
        return time.monotonic() - start
    return None


def test_a_forked_child_does_not_keep_a_dead_rank_alive(world):
    """The child has closed its copies of the rank's connections."""
    (survived, seconds), (lived, _) = world.outcomes(fork_and_die, size=2, deadline=15)

    assert survived
    assert not lived
    assert seconds < 8  # the child sleeps for 20


def idle_after_fork(rank, size):
    dist.barrier()
    child = os.fork()
    if child == 0:
        time.sleep(3)
        os._exit(0)
    if rank == 1:
        dist.destroy_process_group()
        os.waitpid(child, 0)
        return 0.0
    time.sleep(0.5)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(1.5)
    after = resource.getrusage(resource.RUSAGE_SELF)
    os.waitpid(child, 0)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_engine_does_not_spin_after_a_fork(world):
    """A peer has left while a child has copies of the connections: still idle."""
    seconds, _ = world.run(idle_after_fork, size=2)

    assert 0.3 > seconds


def add_sparse(rank, size):
    """Every rank has element 0 and another one; the last has none at all."""
    count = 0 if rank == size - 1 else 2
    indices = torch.tensor([[0, rank + 1]])[:, :count]
    values = torch.tensor([1.0, 10.0 * (rank + 1)])[:count]
    tensor = torch.sparse_coo_tensor(indices, values, (5,), check_invariants=True)
    work = dist.all_reduce(tensor, async_op=True)
    (result,) = work.get_future().wait()
    return tensor.to_dense().tolist(), result.to_dense().tolist()


def test_sparse_tensors_are_added(world):
    """Ranks may have different numbers of elements, also none."""
    total = [2.0, 10.0, 20.0, 0.0, 0.0]

    assert [(total, total)] * 3 == world.run(add_sparse, size=3)


def add_unlike_sparse(rank, size):
    tensor = torch.eye(3 + rank).to_sparse()
    with pytest.raises(ValueError, match="another shape"):
        dist.all_reduce(tensor)
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def test_sparse_tensors_of_unlike_shapes_are_refused(world):
    """On every rank, before any element moves; the group works on."""
    assert [2.0] * 2 == world.run(add_unlike_sparse, size=2)
