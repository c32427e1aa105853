# SPDX-License-Identifier: Apache-2.0
"""Memory of the test device: who may touch it, when it is handed out again, how much there is."""

import ctypes
import signal

import pytest
import test_device
import torch
from device_process import on_device

N = 1000


def read_on_host():
    ctypes.string_at(torch.ones(N, device="testdev").data_ptr(), 4)


def write_on_host():
    ctypes.memset(torch.ones(N, device="testdev").data_ptr(), 0, 4)


@pytest.mark.parametrize("access", [read_on_host, write_on_host])
def test_the_host_can_not_touch_device_memory(device_processes, access):
    assert -signal.SIGSEGV == device_processes.exit_code(access)


@on_device
def test_memory_that_nobody_has_written_is_nan():
    assert torch.empty(N, device="testdev").isnan().all()


@on_device
def test_a_freed_block_is_handed_out_at_once_on_its_stream():
    first = torch.ones(N, device="testdev")
    address = first.data_ptr()
    with test_device.held_stream():
        first.add_(1)
        del first
        again = torch.empty(N, device="testdev").data_ptr()

    assert address == again


@on_device
def test_a_freed_block_is_not_handed_out_on_another_stream():
    first = torch.ones(N, device="testdev")
    address = first.data_ptr()
    torch.accelerator.synchronize()
    del first
    with torch.Stream(device="testdev"):
        other = torch.empty(N, device="testdev")

    assert address != other.data_ptr()


@on_device
def test_record_stream_delays_reuse_until_the_stream_has_passed():
    first = torch.ones(N, device="testdev")
    address = first.data_ptr()
    stream = torch.Stream(device="testdev")
    stream.wait_stream(torch.testdev.current_stream())
    with stream, test_device.held_stream():
        total = first.sum()
        first.record_stream(stream)
        del first
        with torch.testdev.default_stream():
            early = torch.empty(N, device="testdev").data_ptr()
    stream.synchronize()

    assert address != early
    assert address == torch.empty(N, device="testdev").data_ptr()
    assert N == total.item()
    assert test_device.StaleUses(device=0, pinned=0) == test_device.take_stale_uses()


@on_device
def test_a_stream_that_was_not_recorded_reads_nan_and_is_counted():
    first = torch.ones(N, device="testdev")
    stream = torch.Stream(device="testdev")
    with stream, test_device.held_stream():
        total = first.sum()
        del first
        with torch.testdev.default_stream() as owner:
            torch.empty(3, device="testdev")  # may take any memory that is free
            owner.synchronize()
    stream.synchronize()

    assert total.isnan()
    assert 1 == test_device.take_stale_uses().device


@on_device
def test_freed_memory_stays_until_its_stream_allocates():
    """FSDP2 frees gradients that another stream reads, and allocates behind an event."""
    first = torch.ones(N, device="testdev")
    owner = torch.testdev.current_stream()
    stream = torch.Stream(device="testdev")
    stream.wait_stream(owner)
    with stream:
        with test_device.held_stream():
            total = first.sum()
            del first
            owner.synchronize()
        owner.wait_stream(stream)
    torch.empty(N, device="testdev")

    assert N == total.item()
    assert test_device.StaleUses(device=0, pinned=0) == test_device.take_stale_uses()


@on_device
def test_memory_ends_at_its_limit():
    test_device.set_memory_limit(1 << 20)
    kept = torch.zeros(1 << 17, device="testdev")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 18, device="testdev")

    assert 0 == kept.sum()
    assert 1 << 20 == torch.empty(1 << 18, device="testdev:1").nbytes


@on_device
def test_cached_blocks_are_given_back_before_memory_ends():
    test_device.set_memory_limit(1 << 20)
    for size in (1 << 10, 1 << 14, 1 << 17, 1 << 18):
        torch.empty(size, device="testdev")

    assert 1 << 20 == torch.testdev.memory_reserved()
    torch.testdev.empty_cache()
    assert 0 == torch.testdev.memory_reserved()


@on_device
def test_statistics_count_what_tensors_have():
    kept = torch.empty(N, device="testdev:1")

    assert 4096 == torch.testdev.memory_allocated(1) >= kept.nbytes
    assert 0 == torch.testdev.memory_allocated(0)
    del kept
    assert 0 == torch.accelerator.memory_allocated(1)
    assert 4096 == torch.accelerator.max_memory_allocated(1)


@on_device
def test_a_storage_may_be_resized():
    """FSDP2 frees gathered parameters so."""
    x = torch.arange(N, device="testdev")
    x.untyped_storage().resize_(2 * x.nbytes)
    expected = torch.arange(N)

    assert torch.equal(expected, x.cpu())
    x.untyped_storage().resize_(0)
    assert 0 == torch.testdev.memory_allocated()
