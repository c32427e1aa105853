# SPDX-License-Identifier: Apache-2.0
"""Streams and events of the test device: order within a stream, none between streams, overlap."""

import threading
import time

import pytest
import test_device
import torch
from device_process import on_device


@on_device
def test_operators_run_later_in_the_order_of_their_stream():
    x = torch.ones(3, device="testdev")
    with test_device.held_stream():
        x.add_(1).mul_(5)
        y = x - 4
        is_early = not torch.testdev.current_stream().query()

    assert is_early
    assert [6, 6, 6] == y.tolist()


@on_device
def test_a_host_that_reads_a_result_waits_for_it():
    begin = time.monotonic()
    test_device.sleep(100)
    torch.ones(3, device="testdev").sum().item()

    assert time.monotonic() - begin > 0.1


@on_device
def test_streams_overlap():
    test_device.start_trace()
    with test_device.held_stream():
        gate = torch.testdev.current_stream().record_event()
        for number in (1, 2, 3):
            with torch.testdev.stream(pool_stream(number)):
                torch.testdev.current_stream().wait_event(gate)
                test_device.sleep(100)
    torch.accelerator.synchronize()
    sleeps = [entry for entry in test_device.stop_trace() if entry.name == "sleep"]

    assert 3 == len(sleeps)
    assert max(entry.begin_us for entry in sleeps) < min(entry.end_us for entry in sleeps)


def pool_stream(number):
    return torch.Stream(number, 0, torch.testdev.default_stream().device_type)


def order_of_streams(seed):
    """The streams in the order in which they ran three operators each, all queued before."""
    test_device.set_max_delay(0)
    test_device.start_trace()
    with test_device.held_stream():
        opening = torch.testdev.current_stream().record_event()
        for number in (1, 2, 3):
            with pool_stream(number):
                torch.testdev.current_stream().wait_event(opening)
                for _ in range(3):
                    test_device.sleep(0)
        time.sleep(0.05)  # until the scheduler has nothing to do, and draws no number
        test_device.set_seed(seed)
    torch.accelerator.synchronize()
    return [entry.stream for entry in test_device.stop_trace() if entry.name == "sleep"]


@on_device
def test_the_order_between_streams_is_random():
    assert len({tuple(order_of_streams(seed)) for seed in range(6)}) > 1


@pytest.mark.parametrize("seed", range(5))
@on_device
def test_a_stream_waits_for_an_event(seed):
    test_device.set_seed(seed)
    x = torch.zeros(100, device="testdev")
    first, second = torch.Stream(device="testdev"), torch.Stream(device="testdev")
    second.wait_stream(torch.testdev.current_stream())
    first.wait_stream(torch.testdev.current_stream())
    for _ in range(5):
        with first:
            test_device.sleep(1)
            x.add_(1)
        second.wait_event(first.record_event())
        with second:
            x.mul_(2)
        first.wait_event(second.record_event())
    first.synchronize()

    assert [62.0] * 100 == x.tolist()


@on_device
def test_an_unordered_read_sees_old_memory():
    """The fault that the device makes visible: without an event, a stream is too early."""
    x = torch.zeros(3, device="testdev")
    torch.accelerator.synchronize()
    with test_device.held_stream():
        x.fill_(1)
        with torch.Stream(device="testdev"):
            early = x.clone().tolist()

    assert [0, 0, 0] == early


@on_device
def test_held_copies_of_a_kind_hold_up_their_stream_alone():
    x, pinned = torch.zeros(3, device="testdev"), torch.ones(3).pin_memory()
    with test_device.held_copies(test_device.COPY_TO_DEVICE):
        with torch.Stream(device="testdev"):
            x.copy_(pinned, non_blocking=True)
            y = x + 1
            copied = torch.testdev.current_stream().record_event()
        of_another_stream = x.tolist()
        is_early = not copied.query()
    copied.synchronize()

    assert [0, 0, 0] == of_another_stream
    assert is_early
    assert [2, 2, 2] == y.tolist()


@on_device
def test_copies_of_a_kind_are_held_once():
    with (
        test_device.held_copies(test_device.COPY_TO_HOST),
        pytest.raises(RuntimeError),
        test_device.held_copies(test_device.COPY_TO_HOST),
    ):
        pass

    assert [1] == torch.ones(1, device="testdev").tolist()


@on_device
def test_an_event_is_complete_when_its_stream_has_passed():
    event = torch.Event("testdev")
    before = event.query()
    with test_device.held_stream():
        event.record()
        pending = event.query()
    event.synchronize()

    assert (True, False, True) == (before, pending, event.query())


@on_device
def test_events_measure_time():
    begin, end = (torch.Event("testdev", enable_timing=True) for _ in range(2))
    begin.record()
    test_device.sleep(20)
    end.record()
    end.synchronize()

    assert 20 <= begin.elapsed_time(end)


@on_device
def test_an_event_without_timing_refuses_to_measure():
    begin, end = torch.Event("testdev"), torch.Event("testdev")
    begin.record()
    end.record()
    end.synchronize()
    with pytest.raises(ValueError):  # noqa: PT011
        begin.elapsed_time(end)


@on_device
def test_each_thread_has_its_current_stream_and_device():
    seen = []
    torch.testdev.set_device(1)
    with torch.Stream(device="testdev:1"):
        thread = threading.Thread(
            target=lambda: seen.extend(
                (torch.testdev.current_device(), torch.testdev.current_stream(1).stream_id)
            )
        )
        thread.start()
        thread.join()
        here = torch.testdev.current_device(), torch.testdev.current_stream(1).stream_id

    assert [0, 0] == seen
    assert 1 == here[0]
    assert here[1] > 0


@on_device
def test_the_pool_has_several_streams_and_new_ones_are_new():
    new = {torch.Stream(device="testdev").stream_id for _ in range(20)}
    pool = {test_device.stream_from_pool(1).stream_id for _ in range(20)}
    stream = torch.testdev.default_stream()

    assert 20 == len(new)
    assert set(range(1, 9)) == pool
    assert (0, 0) == (stream.stream_id, stream.device_index)


@on_device
def test_a_copy_between_devices_is_ordered_on_both():
    x = torch.zeros(3, device="testdev:0")
    with test_device.held_stream():
        x.fill_(7)
        y = x.to("testdev:1")
        z = y + 1

    assert [8, 8, 8] == z.tolist()


@on_device
def test_a_trace_tells_what_each_stream_did():
    test_device.start_trace()
    x = torch.zeros(3, device="testdev:1")
    x.add_(1)
    x.cpu()
    trace = test_device.stop_trace()
    names = [entry.name for entry in trace]

    assert ["aten::add", "copy_device_to_host"] == names[-2:]
    assert {(1, 0)} == {(entry.device, entry.stream) for entry in trace}
    assert all(entry.begin_us <= entry.end_us for entry in trace)
