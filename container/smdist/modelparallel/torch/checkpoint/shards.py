# SPDX-License-Identifier: Apache-2.0
"""This rank's part of a whole tensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def fill(target: Any, value: Any) -> Any:
    """Copy a whole tensor, or this rank's shard of it, into `target`; objects are themselves."""
    if not isinstance(target, Tensor):
        return value
    if not isinstance(target, DTensor):
        return target.copy_(value)
    sizes, offsets = compute_local_shape_and_global_offset(
        target.shape, target.device_mesh, target.placements
    )
    ranges = zip(offsets, sizes, strict=True)
    part = value[tuple(slice(start, start + size) for start, size in ranges)]
    target.to_local().copy_(part)
    return target
