# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: all-reduces of a device's tensors, copies, and a product beside them."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.devices import here

_PRODUCTS = 4  # matrix products between two looks at the clock
_AHEAD = 2  # batches of products that the device has in its queue

_now: dict[str, Any] = {}  # tensors of what is measured


def prepare(size: int, dtype: str) -> None:
    """Create a tensor of `size` bytes, check one sum of it, and fill it with zeros."""
    kind = getattr(torch, dtype)
    tensor = torch.full((size // kind.itemsize,), dist.get_rank() + 1, dtype=kind, device=here())
    dist.all_reduce(tensor)
    expected, ranks = {float(value) for value in tensor.cpu().unique()}, dist.get_world_size()
    assert expected == {ranks * (ranks + 1) / 2}, f"the sum is {expected}"
    _now["tensor"] = tensor.zero_()
    torch.accelerator.synchronize()


def all_reduce(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of this many all-reduces, one after another."""
    tensor = _now["tensor"]
    dist.all_reduce(tensor)  # waits for ranks that are late
    torch.accelerator.synchronize()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(tensor)
    torch.accelerator.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def prepare_copies() -> None:
    """Create pinned memory for copies of the tensor in both directions, and two streams."""
    tensor = _now["tensor"]
    _now["pinned"] = [torch.empty_like(tensor, device="cpu").pin_memory() for _ in range(2)]
    _now["received"] = torch.empty_like(tensor)
    _now["streams"] = [torch.Stream(device=here()) for _ in range(2)]


def copies(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of copies to and from the host, both at once."""
    (taken, given), (down, up) = _now["pinned"], _now["streams"]
    torch.accelerator.synchronize()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        with down:
            taken.copy_(_now["tensor"], non_blocking=True)
        with up:
            _now["received"].copy_(given, non_blocking=True)
    torch.accelerator.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def prepare_product(side: int) -> None:
    """Create two square matrices on rank 0."""
    kind = torch.bfloat16 if here().type == "cuda" else torch.float32
    if dist.get_rank() == 0:
        _now["factors"] = [torch.randn(side, side, dtype=kind, device=here()) for _ in range(2)]
        _now["product"] = torch.empty_like(_now["factors"][0])


def products_alone(iterations: int) -> tuple[float, float]:
    """Return the seconds of matrix products on rank 0, while nothing else runs on the device."""
    return _products(iterations, None)


def products_beside(iterations: int) -> tuple[float, float]:
    """Return the seconds of matrix products on rank 0, for as long as all-reduces run beside."""
    tensor = _now["tensor"]
    dist.barrier()
    reducing = threading.Thread(target=_reduce, args=(tensor, 1 + iterations // 2))
    reducing.start()
    try:
        return _products(iterations, reducing)
    finally:
        reducing.join()


def _reduce(tensor: torch.Tensor, times: int) -> None:
    torch.accelerator.set_device_index(tensor.device.index)
    with torch.Stream(device=tensor.device):
        for _ in range(times):
            dist.all_reduce(tensor)
        torch.accelerator.current_stream().synchronize()


def _products(iterations: int, beside: threading.Thread | None) -> tuple[float, float]:
    """Return the seconds of this many products, from the mean of those that were made.

    beside: products are made until this thread ends; None: `iterations` of them.
    """
    if dist.get_rank() != 0:
        return 0.0, 0.0
    made, queued = 0, deque[torch.Event]()
    cpu, wall = time.process_time(), time.perf_counter()
    while beside.is_alive() if beside else made < iterations:
        for _ in range(_PRODUCTS):
            torch.mm(*_now["factors"], out=_now["product"])
        made += _PRODUCTS
        queued.append(torch.accelerator.current_stream().record_event())
        if len(queued) > _AHEAD:
            queued.popleft().synchronize()
    torch.accelerator.current_stream().synchronize()
    share = iterations / max(1, made)
    return (time.perf_counter() - wall) * share, (time.process_time() - cpu) * share
