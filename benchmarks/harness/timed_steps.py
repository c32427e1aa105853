# SPDX-License-Identifier: Apache-2.0
"""Times of steps that all ranks of a peer run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist


def timed(step: Callable[[], Any], iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of this many steps, one after another."""
    dist.barrier()  # waits for ranks that are late
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        step()
    return time.perf_counter() - wall, time.process_time() - cpu
