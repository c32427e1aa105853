# SPDX-License-Identifier: Apache-2.0
"""Pinned memory of the test device, and copies that use it."""

import time

import pytest
import test_device
import torch
from device_process import on_device

N = 1000
NEVER = test_device.StaleUses(device=0, pinned=0)


@on_device
def test_pinned_tensors_know_that_they_are():
    assert torch.ones(3).pin_memory().is_pinned()
    assert torch.empty(3, pin_memory=True)[1:].is_pinned()
    assert not torch.ones(3).is_pinned()


@on_device
def test_a_copy_to_pinned_memory_happens_later():
    x = torch.ones(N, device="testdev")
    host = torch.zeros(N).pin_memory()
    with test_device.held_stream():
        host.copy_(x, non_blocking=True)
        early = host.sum().item()
    torch.accelerator.synchronize()

    assert (0, N) == (early, host.sum().item())


@on_device
def test_a_copy_from_pinned_memory_happens_later():
    """Whoever changes the memory too early has changed what is copied."""
    host = torch.ones(N).pin_memory()
    with test_device.held_stream():
        x = host.to("testdev", non_blocking=True)
        host.fill_(2)

    assert 2 * N == x.sum().item()


@pytest.mark.parametrize("is_pinned", [False, True])
@on_device
def test_other_copies_make_the_host_wait(is_pinned):
    x = torch.ones(N, device="testdev")
    host = torch.zeros(N, pin_memory=is_pinned)
    begin = time.monotonic()
    test_device.sleep(50)
    host.copy_(x, non_blocking=not is_pinned)

    assert N == host.sum().item()
    assert time.monotonic() - begin > 0.05


@on_device
def test_a_freed_block_is_reused_after_the_copy_that_uses_it():
    x = torch.ones(N, device="testdev")
    host = torch.empty(N, pin_memory=True)
    address = host.data_ptr()
    with test_device.held_stream():
        host.copy_(x, non_blocking=True)
        del host
        early = torch.empty(N, pin_memory=True).data_ptr()
    torch.accelerator.synchronize()

    assert address != early
    assert address in {torch.empty(N, pin_memory=True).data_ptr() for _ in range(2)}
    assert NEVER == test_device.take_stale_uses()


@on_device
def test_a_copy_that_the_allocator_does_not_know_of_is_counted():
    """A pointer into a block, which torch.cuda doesn't find either, keeps nothing."""
    x = torch.ones(N, device="testdev")
    host = torch.empty(N + 1, pin_memory=True)
    inside = torch.from_numpy(host.numpy()[1:])
    with test_device.held_stream():
        inside.copy_(x, non_blocking=True)
        del host, inside
    torch.accelerator.synchronize()

    assert test_device.StaleUses(device=0, pinned=1) == test_device.take_stale_uses()


@on_device
def test_pinned_memory_ends_at_its_limit():
    test_device.set_pinned_limit(1 << 20)
    kept = torch.zeros(1 << 17, pin_memory=True)
    with pytest.raises(torch.AcceleratorError) as raised:
        torch.empty(1 << 18, pin_memory=True)
    del kept

    assert test_device.MEMORY_ALLOCATION_FAILURE == raised.value.error_code
    assert torch.empty(1 << 18, pin_memory=True).is_pinned()


@on_device
def test_copies_take_time_where_they_shall():
    test_device.set_copy_bandwidth(4 * N / 0.05)  # 50 ms for the tensor
    x = torch.ones(N, device="testdev")
    begin = time.monotonic()
    host = x.cpu()

    assert N == host.sum()
    assert time.monotonic() - begin > 0.05


@on_device
def test_data_loaders_pin_for_the_device():
    batches = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(batches, batch_size=4, pin_memory=True)

    assert [True, True] == [batch.is_pinned() for (batch,) in loader]
