# SPDX-License-Identifier: Apache-2.0
"""Parameters of a rank's stages, and copies of their values from one replica to the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smdist.modelparallel.core.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnedParam:
    """Parameter that one or several stages of this rank hold.

    Attributes:
        name: Name of the parameter in the model, the same on all ranks. If the model has the
            parameter under several names, this is the first one.
        parameter: Parameter of this rank's stages.
        stages: Stages of this rank that hold the parameter.
    """

    name: str
    parameter: nn.Parameter
    stages: frozenset[int]


def owned_params(
    stages: Mapping[int, nn.Module], graph: Graph, *, trained: bool = True
) -> tuple[OwnedParam, ...]:
    """Return the parameters of some stages, in an order that is the same on every replica.

    Args:
        stages: Stages of this rank, by number.
        graph: Graph of the whole model, with the names of its parameters.
        trained: True leaves out frozen parameters.
    """
    first = {name: p.name for p in graph.parameters for name in (p.name, *p.aliases)}
    found: dict[str, tuple[nn.Parameter, set[int]]] = {}
    for number, stage in stages.items():
        for name, parameter in stage.named_parameters():
            found.setdefault(first[name], (parameter, set()))[1].add(number)
    return tuple(
        OwnedParam(name=p.name, parameter=found[p.name][0], stages=frozenset(found[p.name][1]))
        for p in graph.parameters
        if p.name in found and (found[p.name][0].requires_grad or not trained)
    )


def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup, fusion_bytes: int) -> None:
    """Copy tensors from rank 0 of a group to the others, in buffers of up to `fusion_bytes`."""
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
    """View a buffer as bytes, which every backend can copy, unlike some other dtypes."""
    return buffer.view(torch.uint8)


def _alike(tensors: Iterable[Tensor], fusion_bytes: int) -> Iterator[list[Tensor]]:
    """Yield lists of tensors of one dtype and device, of up to `fusion_bytes` per list."""
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
