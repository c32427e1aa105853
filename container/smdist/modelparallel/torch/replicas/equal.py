# SPDX-License-Identifier: Apache-2.0
"""The same values on all replicas: those of the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor


def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup, fusion_bytes: int) -> None:
    """Copy tensors from the first rank of a group to the others, in flat buffers."""
    if group.size() == 1:
        return
    with torch.no_grad():
        for alike in _alike(tensors, fusion_bytes):
            buffer = torch.cat([tensor.detach().reshape(-1) for tensor in alike])
            dist.broadcast(_as_bytes(buffer), group=group, group_src=0)
            parts = torch.split(buffer, [tensor.numel() for tensor in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.detach().copy_(part.view(tensor.shape))


def _as_bytes(buffer: Tensor) -> Tensor:
    """Backends know few types; what travels is never looked at."""
    return buffer.view(torch.uint8)


def _alike(tensors: Iterable[Tensor], fusion_bytes: int) -> Iterator[list[Tensor]]:
    """Of one type and device each, up to a size."""
    open_: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if not tensor.numel():
            continue
        key = tensor.dtype, tensor.device
        found = open_.setdefault(key, [])
        size = sum(each.numel() for each in found) + tensor.numel()
        if found and size * tensor.element_size() > fusion_bytes:
            yield open_.pop(key)
        open_.setdefault(key, []).append(tensor)
    yield from open_.values()
