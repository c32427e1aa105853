# SPDX-License-Identifier: Apache-2.0
"""Norm of gradients that are distributed over the stages of a pipeline and over shards."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.torch.replicas.gradient_buckets import local
from smdist.modelparallel.torch.session.process_groups import Groups


def total_norm(
    tensors: Iterable[Tensor], order: float, groups: Groups, parts: Collection[int] = ()
) -> Tensor:
    """Compute the norm of the gradients of all ranks of a replica; all these ranks must call this.

    As in torch, the result is the norm of the norms of the tensors. It is bitwise equal on all
    ranks.

    Args:
        tensors: Gradients of this rank, whole or DTensors.
        order: Order of the norm, such as 2.0 or math.inf.
        groups: Process groups of this rank.
        parts: Ids of the gradients that are parts of split tensors.
    """
    found = list(tensors)
    whole = [tensor for tensor in found if id(tensor) not in parts]
    split = [tensor for tensor in found if id(tensor) in parts]
    values = [_powers(group, alike, order) for group, alike in _by_shards(whole)]
    for group, alike in _by_shards(split):
        values.append(_powers(group, alike, order))
        _all_reduce(values[-1], order, groups.of(Axis.TP))
    powers = torch.cat([each.cpu() for each in values]) if values else torch.zeros(0).double()
    one = _merged(powers, order)
    _all_reduce(one, order, groups.of(Axis.PP))
    is_wide = any(tensor.dtype is torch.float64 for tensor in found)
    norm = one if order == 0 or math.isinf(order) else one ** (1 / order)
    return norm.squeeze(0).to(torch.float64 if is_wide else torch.float32)


def _by_shards(tensors: list[Tensor]) -> list[tuple[dist.ProcessGroup | None, list[Tensor]]]:
    """Group tensors by the process group over which they are sharded.

    Returns:
        Pairs of a process group and this rank's shards; None for tensors that are not sharded.
    """
    by_group: dict[int, tuple[dist.ProcessGroup | None, list[Tensor]]] = {}
    for tensor in tensors:
        group = _sharers(tensor)
        by_group.setdefault(id(group), (group, []))[1].append(local(tensor))
    return list(by_group.values())


def _sharers(tensor: Tensor) -> dist.ProcessGroup | None:
    """Return the process group over which a tensor is sharded; None for a whole tensor."""
    if not isinstance(tensor, DTensor):
        return None
    sharded = [dim for dim, placed in enumerate(tensor.placements) if placed.is_shard()]
    return tensor.device_mesh.get_group(sharded[0]) if sharded else None


def _powers(group: dist.ProcessGroup | None, tensors: list[Tensor], order: float) -> Tensor:
    """Return, for each tensor, the sum of |x| ** order over all its elements and shards.

    For order inf, the result is the maximum of |x|; for order -inf, the minimum.

    Args:
        group: Ranks that have the other shards; None for whole tensors.
        tensors: This rank's shards, or whole tensors.
        order: Order of the norm.
    """
    powers = torch.stack([_power(tensor, order) for tensor in tensors])
    if group is not None:
        _all_reduce(powers, order, group)
    return powers


def _power(tensor: Tensor, order: float) -> Tensor:
    """Return a tensor's norm to the power `order`, in float64; for order 0 or inf, the norm."""
    if not tensor.numel():  # a shard may be empty
        return torch.full((), math.inf if order == -math.inf else 0.0).double().to(tensor.device)
    dtype = torch.float32 if tensor.dtype.itemsize < 4 else None
    norm: Tensor = torch.linalg.vector_norm(tensor, order, dtype=dtype).double()
    return norm if order == 0 or math.isinf(order) else norm.pow(order)


def _merged(powers: Tensor, order: float) -> Tensor:
    """Combine the values of all tensors of one rank into a vector of one element.

    The element is the sum of the values. For order inf it is their maximum, for order -inf their
    minimum, and for order 0 the number of values that are not 0, as in torch.

    Args:
        powers: For each tensor, its norm to the power `order`; for order 0 or inf, the norm.
        order: Order of the norm.
    """
    if order == math.inf:
        return torch.cat([powers, powers.new_zeros(1)]).amax(0, keepdim=True)
    if order == -math.inf:
        return torch.cat([powers, powers.new_full((1,), math.inf)]).amin(0, keepdim=True)
    if order == 0:  # torch counts the norms that are not 0
        powers = (powers != 0).double()
    return powers.sum(0, keepdim=True)


def _all_reduce(powers: Tensor, order: float, group: dist.ProcessGroup) -> None:
    """Sum values over the ranks of a group, in place.

    For order inf, the result is the maximum instead; for order -inf, the minimum. NaN stays NaN.
    """
    if group.size() == 1:
        return
    if not math.isinf(order):
        dist.all_reduce(powers, group=group)
        return
    wrong = powers.isnan().to(powers.dtype)
    dist.all_reduce(wrong, group=group)
    op = dist.ReduceOp.MAX if order > 0 else dist.ReduceOp.MIN
    powers.nan_to_num_(nan=0.0, posinf=math.inf)
    dist.all_reduce(powers, op, group=group)
    powers[wrong > 0] = math.nan
