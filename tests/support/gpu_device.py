# SPDX-License-Identifier: Apache-2.0
"""A GPU with the functions of test_device that a GPU can have.

It counts no use of memory after its end: a missing wait is found only if a result is wrong.
"""

import contextlib
from collections.abc import Iterator

import torch
from test_device import StaleUses

_HOLD_MS = 1000
_CLOCK_KHZ = 2_000_000  # no GPU of today is faster, so sleep() is never too short


def load() -> None:
    """Use the GPU once, so that a GPU that cannot be used is an error here."""
    torch.zeros(1, device="cuda")


def set_seed(seed: int) -> None:
    """Choose nothing: a GPU has an order of its own."""


def sleep(milliseconds: float) -> None:
    """Keep the current stream busy for at least so long."""
    torch.cuda._sleep(int(milliseconds * _CLOCK_KHZ))


@contextlib.contextmanager
def held_stream() -> Iterator[None]:
    """Hold the current stream for a second: what is queued in the `with` block runs after that."""
    sleep(_HOLD_MS)
    yield


def set_memory_limit(num_bytes: int, device: int = 0) -> None:
    """Limit the memory that this process takes of a GPU."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, num_bytes / total), device)


def take_stale_uses() -> StaleUses:
    """No uses: a GPU cannot tell."""
    return StaleUses(device=0, pinned=0)
