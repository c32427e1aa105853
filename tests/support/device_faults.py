# SPDX-License-Identifier: Apache-2.0
"""Facts about the errors of calls on a device: which one a call raises, and that it comes soon."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import accelerator
import pytest
import torch
import torch.distributed as dist

SECONDS = 10  # longest time until an error is raised


def sum_on_all(rank: int, size: int) -> None:
    """Sum once, and wait until all ranks have the sum: a later fault is no error of this call."""
    dist.all_reduce(torch.ones(5000, device=accelerator.NAME))
    torch.accelerator.synchronize()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"rank {rank} has the sum", "")
    store.wait([f"rank {each} has the sum" for each in range(size)])


def fault_of(call: Callable[[], Any]) -> tuple[str, str]:
    """Return the type of the error that a call raises, and the first line of its text."""
    begin = time.monotonic()
    with pytest.raises(Exception) as raised:  # noqa: PT011  the test asks which one
        call()
    assert time.monotonic() - begin < SECONDS
    return type(raised.value).__name__, str(raised.value).split("\n")[0]


def later_fault_of(call: Callable[[], Any]) -> tuple[str, str]:
    """Return the same of operations: their error comes in their wait(), or in a later call."""

    def call_and_go_on():
        call()
        with suppress(torch.AcceleratorError):  # the device's own error, if it is the first
            torch.accelerator.synchronize()
        dist.all_reduce(torch.ones(3, device=accelerator.NAME))

    return fault_of(call_and_go_on)
