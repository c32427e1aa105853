# SPDX-License-Identifier: Apache-2.0
"""Parameters that a rank holds, under names that are the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from smdist.modelparallel.core.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnedParam:
    """One parameter, used by one or several stages of this rank.

    Attributes:
        name: Name in the graph, which is the parameter's first name in the model.
        stages: Stages of this rank that hold it.
    """

    name: str
    parameter: nn.Parameter
    stages: frozenset[int]


def owned_params(
    stages: Mapping[int, nn.Module], graph: Graph, *, trained: bool = True
) -> tuple[OwnedParam, ...]:
    """Return parameters in the order of the graph, which is the same on every replica."""
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


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor if it is whole; dense."""
    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def numbers(gradient: Tensor) -> Tensor:
    """Return the elements of a local gradient, to be scaled in place; a sparse one has fewer."""
    return gradient._values() if gradient.is_sparse else local(gradient)


def added(earlier: Tensor, more: Tensor) -> Tensor:
    """Add two gradients in place of one of them; the sum is sparse if both are."""
    if earlier.is_sparse and not more.is_sparse:
        earlier, more = more, earlier
    if more.is_sparse:
        return earlier.add_(more)
    local(earlier).add_(local(more))
    return earlier


def flattened(parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return local gradients as vectors; zeros for a parameter without a gradient."""
    return [
        local(p).new_zeros(local(p).numel()) if p.grad is None else local(p.grad).reshape(-1)
        for p in parameters
    ]


def flags(parameters: list[nn.Parameter], like: Tensor) -> Tensor:
    """Return 1 for each parameter that has a gradient, otherwise 0."""
    return like.new_tensor([0.0 if p.grad is None else 1.0 for p in parameters])


def set_gradient(parameter: nn.Parameter, values: Tensor | None) -> None:
    """Give a parameter a local gradient: whole or a shard, as the parameter is."""
    if values is None:
        parameter.grad = None
        return
    if isinstance(parameter, DTensor):
        shard = values.view(parameter._local_tensor.shape)
        parameter.grad = DTensor(shard, parameter._spec, requires_grad=False)  # type: ignore[no-untyped-call]
    else:
        parameter.grad = values.view(parameter.shape)
