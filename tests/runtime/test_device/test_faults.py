# SPDX-License-Identifier: Apache-2.0
"""Faults of the test device: copies that fail, errors that stay, and processes that fork."""

import contextlib
import os

import pytest
import test_device
import torch
from device_process import on_device


@contextlib.contextmanager
def fails_with(code):
    with pytest.raises(torch.AcceleratorError) as raised:
        yield
    assert code == raised.value.error_code


def copy_to_host(x):
    return torch.empty(x.shape, pin_memory=True).copy_(x, non_blocking=True)


@on_device
def test_a_copy_fails_where_it_shall_and_the_host_learns_it_when_it_synchronizes():
    x = torch.ones(3, device="testdev")
    test_device.fail_copy(2, test_device.COPY_TO_HOST)
    copy_to_host(x)
    torch.accelerator.synchronize()
    copy_to_host(x)
    with fails_with(test_device.LAUNCH_FAILURE):
        torch.accelerator.synchronize()


@on_device
def test_an_error_stays_until_it_is_cleared():
    x = torch.ones(3, device="testdev")
    test_device.fail_copy(1)
    copy_to_host(x)
    for _ in range(2):
        with fails_with(test_device.LAUNCH_FAILURE):
            x.sum().item()
    test_device.clear_errors()

    assert 3 == x.sum().item()


@on_device
def test_queries_report_an_error():
    event = torch.Event("testdev")
    test_device.fail_copy(1)
    copy_to_host(torch.ones(3, device="testdev"))
    event.record()
    with fails_with(test_device.LAUNCH_FAILURE):
        event.synchronize()
    with fails_with(test_device.LAUNCH_FAILURE):
        event.query()
    with fails_with(test_device.LAUNCH_FAILURE):
        torch.testdev.current_stream().query()


@on_device
def test_an_error_reaches_the_streams_that_wait_and_no_others():
    failing, waiting, other = (torch.Stream(device="testdev") for _ in range(3))
    with failing:
        x = torch.ones(3, device="testdev")
        test_device.fail_copy(1)
        copy_to_host(x)
    waiting.wait_stream(failing)

    other.synchronize()
    with fails_with(test_device.LAUNCH_FAILURE):
        waiting.synchronize()


@on_device
def test_operators_after_an_error_do_nothing():
    x, y = torch.ones(3, device="testdev"), torch.zeros(3, device="testdev")
    torch.accelerator.synchronize()
    test_device.fail_copy(1, test_device.COPY_ON_DEVICE)
    y.copy_(x)
    y.fill_(7)
    with fails_with(test_device.LAUNCH_FAILURE):
        torch.accelerator.synchronize()
    test_device.clear_errors()

    assert [0, 0, 0] == y.tolist()


@on_device
def test_an_index_out_of_range_is_an_error_of_the_stream():
    table = torch.ones(3, 2, device="testdev")
    torch.nn.functional.embedding(torch.tensor([5], device="testdev"), table)
    with fails_with(test_device.LAUNCH_FAILURE):
        torch.accelerator.synchronize()


def exit_code_of_child(function):
    pid = os.fork()
    if pid == 0:
        try:
            function()
        except torch.AcceleratorError as error:
            os._exit(error.error_code)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@on_device
def test_a_device_that_was_used_can_not_be_used_after_a_fork():
    x = torch.ones(3, device="testdev")
    uses = [
        lambda: torch.ones(3, device="testdev"),
        lambda: x.cpu(),
        lambda: x.add_(1),
        lambda: torch.empty(3, pin_memory=True),
        lambda: torch.Stream(device="testdev"),
        torch.accelerator.synchronize,
    ]

    assert {test_device.INITIALIZATION_ERROR} == {exit_code_of_child(use) for use in uses}
    assert 0 == exit_code_of_child(lambda: x.__class__)
    assert not torch.testdev._is_in_bad_fork()


@on_device
def test_a_device_that_was_not_used_can_be_used_after_a_fork():
    assert not torch.testdev.is_initialized()
    assert 0 == exit_code_of_child(lambda: torch.ones(3, device="testdev").cpu())
