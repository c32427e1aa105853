# SPDX-License-Identifier: Apache-2.0
"""Slots in memory that the ranks of a host share: neighbours read what is staged where it lies."""

import accelerator
import pytest
import test_device
import torch
import torch.distributed as dist

SLOTS = {"staging_slot_bytes": 65536, "staging_slots": 4}
pytestmark = accelerator.on_the_test_device("memory that CUDA has pinned cannot be asked")


def sums(rank, size):
    """Results of sums in pieces, whose slots are used again, and the bytes that are registered."""
    test_device.set_seed(rank)
    are_right = []
    for length in (100_000, 99_999, 300_001):
        generator = torch.Generator().manual_seed(length)
        inputs = torch.randint(-9, 9, (size, length), generator=generator).float()
        x = inputs[rank].to("testdev")
        dist.all_reduce(x)
        gathered = torch.empty(size, length, device="testdev")
        dist.all_gather_single(gathered, x)
        are_right.append(all(torch.equal(row, inputs.sum(0)) for row in gathered.cpu()))
    registered = test_device.registered_bytes()
    return are_right, registered, test_device.take_stale_uses()


@pytest.mark.parametrize(("registers", "slots"), [("1", 4), ("0", 0)])
def test_sums_in_registered_memory(device_processes, registers, slots):
    """Without a registration of memory, slots are those of the allocator."""
    ranks = device_processes.run_ranks(
        sums, size=3, staging=SLOTS, TESTDEV_REGISTERS_MEMORY=registers
    )

    assert [([True] * 3, slots * 65536, accelerator.NEVER)] * 3 == ranks


def has_raised(call):
    """Make a call, and return whether it has raised the error of ranks that disagree."""
    try:
        call()
    except ValueError:
        return True
    return False


def disagree_and_go_on(rank, size):
    """A call that fails keeps its slots: more such calls than there are slots."""
    for attempt in range(6):
        mine = torch.ones(30_000 + 100 * rank, device="testdev")
        is_early = has_raised(lambda mine=mine: dist.all_reduce(mine))
        torch.accelerator.synchronize()
        is_late = has_raised(lambda: dist.all_reduce(torch.ones(3, device="testdev")))
        assert is_early != is_late
        x = torch.full((50_000,), float(attempt), device="testdev")
        dist.all_reduce(x)
        assert [2.0 * attempt] == x.cpu().unique().tolist()
    return test_device.take_stale_uses()


def test_slots_of_failed_calls_are_replaced(device_processes):
    ranks = device_processes.run_ranks(disagree_and_go_on, size=2, staging=SLOTS)

    assert [accelerator.NEVER] * 2 == ranks
