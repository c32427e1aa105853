# SPDX-License-Identifier: Apache-2.0
"""A device of torch, `testdev`, that makes mistakes of those who use devices visible.

Two devices, `testdev:0` and `testdev:1`, live in this process, with streams, events, a caching
allocator and pinned memory that keep the rules of CUDA's, and enough operators to train:

    import test_device

    test_device.load()
    x = torch.ones(3, device="testdev")

* The host can't reach a device's memory: reading or writing it is a segmentation fault.
* Operators and copies run later, in the order of their stream and in random order between streams.
* Memory that nobody has written, or that was freed, is NaN as soon as its stream has come so far.
* Operators that use memory after that are counted: take_stale_uses().
* Copies fail and memory ends where a test says so: fail_copy(), set_memory_limit(),
  set_pinned_limit().

load() reads TESTDEV_SEED, TESTDEV_MAX_DELAY_US, TESTDEV_MEMORY_BYTES and TESTDEV_PINNED_BYTES.
"""

import atexit
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .build import built_library

NAME = "testdev"
POISON = 0xFF  # the byte that fills memory nobody has written
COPY_TO_DEVICE = "copy_host_to_device"
COPY_TO_HOST = "copy_device_to_host"
COPY_ON_DEVICE = "copy_device_to_device"

# Codes of torch.AcceleratorError, as CUDA numbers them
MEMORY_ALLOCATION_FAILURE = 2  # of pinned memory
INITIALIZATION_ERROR = 3  # after a fork
LAUNCH_FAILURE = 719  # of a copy or an operator; stays on its stream

_ops = torch.ops.testdev


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEntry:
    """Something that a stream did. Times are microseconds since start_trace()."""

    device: int
    stream: int
    name: str
    begin_us: int
    end_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleUses:
    """How many operations came after the end of memory that they use."""

    device: int
    pinned: int


def load() -> None:
    """Build the device if needed, and make it torch's accelerator. Later calls do nothing."""
    if hasattr(torch, NAME):
        return
    torch.utils.rename_privateuse1_backend(NAME)
    torch.ops.load_library(str(built_library()))
    from . import device_module  # reads operators of the library

    torch._register_device_module(NAME, device_module)
    torch.utils.generate_methods_for_privateuse1_backend()
    atexit.register(_ops.shut_down)  # before the libraries that its thread runs in are gone


def set_seed(seed: int) -> None:
    """Choose the random order of streams and the delays of operations."""
    _ops.set_seed(seed)


def share_queues(is_shared: bool, for_each_priority: bool = False) -> None:
    """Let the streams of a device share one queue, as on a GPU that has fewer queues than streams.

    A stream that waits then holds up what is queued on others later. With `for_each_priority`, the
    streams of high priority share one queue, and the others another one.
    """
    _ops.share_queues(is_shared, for_each_priority)


def set_capturing(is_capturing: bool) -> None:
    """Let streams say that they capture a graph, as while torch.cuda.graph() is open."""
    _ops.set_capturing(is_capturing)


def set_max_delay(milliseconds: float) -> None:
    """Limit the random delay before an operation. The start value is 0.1; 0 means none."""
    _ops.set_max_delay(milliseconds)


def set_copy_bandwidth(bytes_per_second: float) -> None:
    """Let copies take time. The start value, 0, stands for none."""
    _ops.set_copy_bandwidth(bytes_per_second)


def set_memory_limit(num_bytes: int, device: int = 0) -> None:
    """Limit a device's memory. The start value is 1 GiB."""
    _ops.set_memory_limit(num_bytes, device)


def set_pinned_limit(num_bytes: int) -> None:
    """Limit pinned host memory. The start value is 1 GiB."""
    _ops.set_pinned_limit(num_bytes)


def set_deferred(is_deferred: bool) -> None:
    """Let operators run later on their stream, which is the start value, or at once on the host.

    At once means after all that is queued on the current stream. Copies are not concerned.
    """
    _ops.set_deferred(is_deferred)


def pinned_allocations() -> int:
    """How often pinned memory was allocated, not taken from what is cached."""
    return _ops.pinned_allocations()


def stream_memory() -> int:
    """The address of the device's stream memory operations, for smdist's _C."""
    return _ops.stream_memory()


def host_registration() -> int:
    """The address of the device's registration of host memory, for smdist's _C."""
    return _ops.host_registration()


def registered_bytes() -> int:
    """Bytes of host memory that are pinned by registration."""
    return _ops.registered_bytes()


def stream_from_pool(device: int = 0) -> torch.Stream:
    """One of the eight streams of a device's pool, in turn, as C++ gets them.

    torch.Stream(device="testdev") is a new stream each time.
    """
    return _ops.stream_from_pool(device)


def sleep(milliseconds: float) -> None:
    """Keep the current stream busy, as torch.cuda._sleep does."""
    _ops.sleep(milliseconds)


@contextlib.contextmanager
def held_stream() -> Iterator[None]:
    """Hold the current stream in a `with` block: what is queued there runs after the block.

    A host that waits for the stream inside the block waits for ever.
    """
    number = _ops.hold_stream()
    try:
        yield
    finally:
        _ops.open_stream(number)


@contextlib.contextmanager
def held_copies(kind: str) -> Iterator[None]:
    """Hold the copies of a kind that are queued in a `with` block: they run after the block.

    What is queued behind such a copy on its stream is held, too.
    """
    _ops.hold_copies(kind)
    try:
        yield
    finally:
        _ops.release_copies(kind)


def fail_copy(number: int, kind: str | None = None) -> None:
    """Let the number-th copy from now on fail, or the number-th of a kind; 0 takes it back.

    The error stays on the copy's stream until clear_errors(); whoever synchronizes with it or
    queries it gets torch.AcceleratorError. A stream that waits for it gets the same error.
    """
    _ops.fail_copy(number, kind)


def clear_errors() -> None:
    """Take the errors of all streams away."""
    _ops.clear_errors()


def start_trace() -> None:
    """Note from now on what streams do."""
    _ops.start_trace()


def stop_trace() -> list[TraceEntry]:
    """What streams did since start_trace(), in the order of its ends."""
    rows = zip(*_ops.stop_trace(), strict=True)
    return [
        TraceEntry(device=device, stream=stream, name=name, begin_us=begin, end_us=end)
        for device, stream, name, begin, end in rows
    ]


def take_stale_uses() -> StaleUses:
    """The uses that came too late since the last call."""
    device, pinned = _ops.take_stale_uses()
    return StaleUses(device=device, pinned=pinned)
