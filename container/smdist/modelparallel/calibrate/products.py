# SPDX-License-Identifier: Apache-2.0
"""Speeds of this machine's device: products of matrices by dtype and size, and copies of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

import torch

from smdist.modelparallel.calibrate.repetition import LEAST, Repetitions, repeated
from smdist.modelparallel.core.calibration import ProductSpeed

_SIZES: Final = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_DTYPES: Final = {
    "cpu": (torch.float32, torch.bfloat16),
    "cuda": (torch.float32, torch.bfloat16, torch.float16),
}
_COPIED: Final = {"cpu": 256 << 20, "cuda": 1 << 30}  # bytes; larger than the caches
_GROWTH: Final = 8  # a product of twice the size takes about eight times as long


def device_kind() -> str:
    """Return the kind of device that computes here: "cuda" if there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def measure_products(device: str, limit: float) -> Iterator[tuple[ProductSpeed, float]]:
    """Yield the speed of the product of two matrices by dtype and size, the smallest size first.

    The spread of its repetitions comes with each speed.

    Sizes that would take longer than the rest of the time are left out; each dtype has at least one
    size.

    Args:
        device: Kind of device, "cpu" or "cuda".
        limit: Seconds for all dtypes together.
    """
    dtypes = _DTYPES[device]
    for dtype in dtypes:
        end = perf_counter() + limit / len(dtypes)
        expected = 0.0
        for at, size in enumerate(_SIZES):
            rest = end - perf_counter()
            if at and (LEAST + 1) * expected > rest:
                break
            took, spread = _repeated_product(device, dtype, size, rest / (len(_SIZES) - at))
            expected = _GROWTH * took
            name = str(dtype).removeprefix("torch.")
            speed = ProductSpeed(dtype=name, size=size, flops_per_second=2 * size**3 / took)
            yield speed, spread


def measure_memory(device: str, limit: float) -> float:
    """Return the bytes per second that are read and written while a large array is copied.

    Args:
        device: Kind of device, "cpu" or "cuda".
        limit: Seconds of the measurement.
    """
    source = torch.ones(_COPIED[device] // 4, device=device)
    target = torch.empty_like(source)
    took = repeated(lambda: target.copy_(source), _wait(device), limit)
    return 2 * source.nbytes / took.seconds


def _repeated_product(device: str, dtype: torch.dtype, size: int, limit: float) -> Repetitions:
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    result = torch.empty_like(left)
    with torch.inference_mode():
        return repeated(lambda: torch.mm(left, right, out=result), _wait(device), max(limit, 0.0))


def _wait(device: str) -> Callable[[], object]:
    return torch.cuda.synchronize if device == "cuda" else lambda: None
