# SPDX-License-Identifier: Apache-2.0
"""One random schedule of staged operations, made so that a missing order between streams shows.

Work before the operations is late, copies are slow or held until the host has come first, and
memory is used again as soon as it may be. A schedule is a seed: it draws delays, the order of the
steps and the values.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import test_device
import torch
import torch.distributed as dist

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}
ALL_SLOTS = 3 * 1024  # elements: a piece for each slot
LONG = 5003  # elements: several pieces, and more than there are slots
MEDIUM = 2500  # elements: three pieces
SHORT = 700  # elements: one piece
NEVER = test_device.StaleUses(device=0, pinned=0)


PATIENCE = 0.05  # seconds for which a step waits for what must not come
HANGS = 20.0  # seconds after which a step of wrong code counts as one that never ends
BUSY = 300.0  # seconds that a step of the right code may take on a machine with other work
_wrong: list[str] = []  # what the running schedule has found


def run_schedules(
    rank: int, size: int, seeds: range, notes: str, seconds: float = HANGS
) -> dict[int, str]:
    """Run the schedules of these seeds, and return the first fault of each that has one.

    The faults are also appended to `notes/RANK`, a line of JSON each, and so is the seed of each
    schedule before it runs, with "". A step that takes longer than `seconds` ends the process.
    """
    faults = {}
    with (Path(notes) / str(rank)).open("a") as file:
        for seed in seeds:
            print(json.dumps([seed, ""]), file=file, flush=True)
            if fault := _run_schedule(rank, size, seed, seconds):
                faults[seed] = fault
                print(json.dumps([seed, fault]), file=file, flush=True)
    return faults


def _run_schedule(rank: int, size: int, seed: int, seconds: float) -> str:
    """Run a schedule to its end, and return the first thing that was wrong; "" for nothing."""
    random = Random(seed)  # the same on every rank
    test_device.set_seed(seed * size + rank)
    test_device.set_max_delay(random.choice((0.02, 0.1, 0.3)))
    steps = list(_STEPS)
    random.shuffle(steps)
    _wrong.clear()
    for step in steps:
        test_device.set_copy_bandwidth(random.choice((3e6, 1e7)))
        with _ends_within(seconds):
            step(rank, size, float(random.randrange(1, 50)))
    with _ends_within(seconds):
        torch.accelerator.synchronize()
    stale = test_device.take_stale_uses()
    if stale != NEVER:
        _wrong.append(f"memory was used after its end: {stale}")
    return next(iter(_wrong), "")


@contextlib.contextmanager
def _ends_within(seconds: float) -> Iterator[None]:
    """End the process if the block takes longer."""
    end = threading.Timer(seconds, os._exit, (3,))
    end.start()
    yield
    end.cancel()


def _expect(step: str, want: float, values: torch.Tensor) -> None:
    found = values.cpu().unique().tolist()
    if found != [want]:
        _wrong.append(f"{step}: {found[:5]} instead of {want}")


def _late(count: int, value: float) -> torch.Tensor:
    """A tensor whose values come late on the current stream."""
    x = torch.zeros(count, device="testdev")
    test_device.sleep(1)
    return x.fill_(value)


def _total(value: float, size: int) -> float:
    return value * size + size * (size - 1) / 2


def _until_ended(work: dist.Work) -> None:
    """Wait on the host until the copies of the results are queued, but perhaps not complete."""
    work.get_future_result().wait()


def _give_time(is_done: Callable[[], bool]) -> None:
    """Wait on the host until something has come too early, or for as long as that may take."""
    end = time.monotonic() + PATIENCE
    while not is_done() and time.monotonic() < end:
        time.sleep(0.0005)


def sum_late_values(rank: int, size: int, value: float) -> None:
    """Sum what the current stream writes late, and use the sum at once."""
    works, outputs = [], [_late(LONG, value + rank), _late(SHORT, value + rank)]
    works = [dist.all_reduce(x, async_op=True) for x in outputs]
    for work, x in zip(works, outputs, strict=True):
        work.wait()
        _expect("sum_late_values", _total(value, size), x + 0)


def sum_held_values(rank: int, size: int, value: float) -> None:
    """Sum what the current stream writes only after the sum could have ended."""
    x = torch.zeros(SHORT, device="testdev")
    with test_device.held_stream():
        work = dist.all_reduce(x.fill_(value + rank), async_op=True)
        _give_time(work.get_future_result().done)
    work.wait()
    _expect("sum_held_values", _total(value, size), x + 0)


def sum_behind_copies(rank: int, size: int, value: float) -> None:
    """Sum values that are not copied to the host before the sum could have ended."""
    x = torch.full((MEDIUM,), value + rank, device="testdev")
    with test_device.held_copies(test_device.COPY_TO_HOST):
        work = dist.all_reduce(x, async_op=True)
        _give_time(work.get_future_result().done)
    work.wait()
    _expect("sum_behind_copies", _total(value, size), x + 0)


def sum_strided(rank: int, size: int, value: float) -> None:
    """Sum every other element: the result is copied back within the device."""
    x = _late(2 * MEDIUM, value + rank)
    with test_device.held_copies(test_device.COPY_TO_DEVICE):
        work = dist.all_reduce(x[::2], async_op=True)
        _until_ended(work)
        _give_time(work.is_completed)
    work.wait()
    y = x + 0
    _expect("sum_strided", _total(value, size), y[::2])
    _expect("sum_strided, between", value + rank, y[1::2])


def sum_several(rank: int, size: int, value: float) -> None:
    """Sum a short tensor and a long one in one work."""
    both = [_late(SHORT, value + rank), _late(LONG, value + rank)]
    dist.all_reduce_coalesced(both, async_op=True).wait()
    for x in [each + 0 for each in both]:
        _expect("sum_several", _total(value, size), x)


def wait_after_the_end(rank: int, size: int, value: float) -> None:
    """Wait when the host knows the end of the operation, but copies to the device still run."""
    x = torch.full((MEDIUM,), value + rank, device="testdev")
    with test_device.held_copies(test_device.COPY_TO_DEVICE):
        work = dist.all_reduce(x, async_op=True)
        _until_ended(work)
        work.wait()
        y = x + 0
        _give_time(torch.accelerator.current_stream().query)
    _expect("wait_after_the_end", _total(value, size), y)


def wait_before_the_end(rank: int, size: int, value: float) -> None:
    """Wait for two sums in one work, of which the copies to the device run much later."""
    both = [torch.full((SHORT,), value + rank, device="testdev") for _ in range(2)]
    with test_device.held_copies(test_device.COPY_TO_DEVICE):
        dist.all_reduce_coalesced(both, async_op=True).wait()
        later = [x + 0 for x in both]
        _give_time(torch.accelerator.current_stream().query)
    for x in later:
        _expect("wait_before_the_end", _total(value, size), x)


def wait_for_a_future(rank: int, size: int, value: float) -> None:
    """Use the value of a Future, and of one that follows it."""
    x = torch.full((LONG,), value + rank, device="testdev")
    future = dist.all_reduce(x, async_op=True).get_future()
    again = future.then(lambda done: done.value()[0] + 1)
    future.wait()
    _expect("wait_for_a_future", _total(value, size), x + 0)
    _expect("wait_for_a_future, then", _total(value, size) + 1, again.wait())


def start_behind_results(rank: int, size: int, value: float) -> None:
    """Start a sum while the results of an earlier one are not copied from any of the slots."""
    results = torch.full((ALL_SLOTS,), value + rank, device="testdev")
    others = torch.full((SHORT,), 2 * value + rank, device="testdev")
    with test_device.held_copies(test_device.COPY_TO_DEVICE):
        earlier = dist.all_reduce(results, async_op=True)
        _until_ended(earlier)
        later = dist.all_reduce(others, async_op=True)
        _give_time(later.get_future_result().done)
    earlier.wait()
    later.wait()
    _expect("start_behind_results", _total(value, size), results + 0)
    _expect("start_behind_results, later", _total(2 * value, size), others + 0)


def drop_the_output(rank: int, size: int, value: float) -> None:
    """Drop an output whose copies still run, and use its memory again."""
    x = torch.empty(size * MEDIUM, device="testdev")
    mine = torch.full((MEDIUM,), value, device="testdev")
    with test_device.held_copies(test_device.COPY_TO_DEVICE):
        work = dist.all_gather_single(x, mine, async_op=True)
        _until_ended(work)
        address = x.data_ptr()
        del x, work
        junk = _use_again(address, size * MEDIUM, -value)
        torch.accelerator.current_stream().synchronize()
    torch.accelerator.synchronize()
    _expect("drop_the_output", -value, junk)


def drop_the_input(rank: int, size: int, value: float) -> None:
    """Drop an input that is still copied within the device, and use its memory again."""
    x = torch.empty(size * MEDIUM, device="testdev")
    mine = torch.full((MEDIUM,), value, device="testdev")
    with test_device.held_copies(test_device.COPY_ON_DEVICE):
        work = dist.all_gather_single(x, mine, async_op=True)
        _until_ended(work)
        address = mine.data_ptr()
        del mine
        _use_again(address, MEDIUM, -value)
        torch.accelerator.current_stream().synchronize()
    work.wait()
    _expect("drop_the_input", value, x + 0)


def _use_again(address: int, count: int, value: float) -> torch.Tensor:
    """Fill tensors until one has the memory at the address, or it had the time; return the last."""
    tensors: list[torch.Tensor] = []

    def has_address() -> bool:
        tensors.append(torch.full((count,), value, device="testdev"))
        return tensors[-1].data_ptr() == address

    _give_time(has_address)
    return tensors[-1]


def call_in_order(rank: int, size: int, value: float) -> None:
    """Start sums of the device and of the host while the stream of one rank is held."""
    devices = ("testdev", "testdev", "cpu", "testdev", "cpu", "testdev")
    tensors = [
        torch.full((SHORT,), value * (number + 1) + rank, device=device)
        for number, device in enumerate(devices)
    ]
    if rank == 0:
        with test_device.held_stream():
            works = [dist.all_reduce(x, async_op=True) for x in tensors]
            time.sleep(0.003)
    else:
        works = []
        for x in tensors:
            works.append(dist.all_reduce(x, async_op=True))
            time.sleep(0.008)  # until the operation is with the engine
    for number, (work, x) in enumerate(zip(works, tensors, strict=True)):
        work.wait()
        _expect("call_in_order", _total(value * (number + 1), size), x + 0)


_STEPS = (
    sum_late_values,
    sum_held_values,
    sum_behind_copies,
    sum_strided,
    sum_several,
    wait_after_the_end,
    wait_before_the_end,
    wait_for_a_future,
    start_behind_results,
    drop_the_output,
    drop_the_input,
    call_in_order,
)
