# SPDX-License-Identifier: Apache-2.0
"""Autograd functions at the borders of a split region: a collective in one of the two passes.

    function   forward pass               backward pass
    entered    identity                   all-reduce of the gradient
    summed     all-reduce                 identity
    joined     all-gather of one dim      this rank's part of the gradient
    narrowed   this rank's part           all-gather of the gradient

Every rank computes what follows the region in the same way, so it has the whole gradient there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smdist.modelparallel.torch.tensor_splits.peers import Peers


def memory_order(tensor: Tensor) -> list[int]:
    """Return the dimensions of a tensor in the order of memory, that of the largest stride first.

    Values that leave a region have the layout that whole layers give them, since dropout draws its
    numbers in the order of memory.
    """
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim))


def from_memory_order(tensor: Tensor, order: list[int]) -> Tensor:
    """Undo `tensor.permute(order)`; the result is no view, and its dimensions are in that order.

    Args:
        tensor: Contiguous tensor with its dimensions in the order of memory.
        order: Result of `memory_order`.
    """
    if order == sorted(order):
        return tensor
    return tensor.permute([order.index(dim) for dim in range(len(order))]).clone()


class _Entered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.peers.all_reduce(grads[0].contiguous().clone()), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, peers: Peers) -> Tensor:  # noqa: ARG004  torch's
        order = memory_order(tensor)
        found = peers.all_reduce(tensor.permute(order).contiguous().clone())
        return from_memory_order(found, order)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ARG004  torch's
        return grads[0], None


class _JoinedParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, peers: Peers, dim: int) -> Tensor:
        ctx.peers, ctx.dim = peers, dim
        return torch.cat(peers.all_gather(tensor.contiguous()), dim)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].chunk(ctx.peers.size, ctx.dim)[ctx.peers.rank].contiguous(), None, None


class _NarrowedPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, peers: Peers, dim: int) -> Tensor:
        ctx.peers, ctx.dim = peers, dim
        return tensor.chunk(peers.size, dim)[peers.rank].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return torch.cat(ctx.peers.all_gather(grads[0].contiguous()), ctx.dim), None, None


def entered(tensor: Tensor, peers: Peers) -> Tensor:
    """Return a tensor unchanged; in the backward pass, its gradient is summed over ranks.

    Args:
        tensor: Input of a split region, equal on all ranks.
        peers: Ranks over which the region is split.
    """
    result: Tensor = _Entered.apply(tensor, peers)  # type: ignore[no-untyped-call]
    return result


def summed(tensor: Tensor, peers: Peers) -> Tensor:
    """Return the sum of a tensor over ranks; in the backward pass, the gradient is unchanged.

    Args:
        tensor: This rank's share of the output of a split region.
        peers: Ranks over which the region is split.
    """
    result: Tensor = _Summed.apply(tensor, peers)  # type: ignore[no-untyped-call]
    return result


def joined(tensor: Tensor, peers: Peers, dim: int = -1) -> Tensor:
    """Return a dimension of a tensor whole, from the parts of all ranks.

    Args:
        tensor: This rank's part, such as the scores of its part of the vocabulary.
        peers: Ranks over which the dimension is split.
        dim: The dimension.
    """
    result: Tensor = _JoinedParts.apply(tensor, peers, dim)  # type: ignore[no-untyped-call]
    return result


def narrowed(tensor: Tensor, peers: Peers, dim: int) -> Tensor:
    """Return this rank's part of a tensor that is whole on every rank.

    Args:
        tensor: The whole tensor, such as a bias of attention with a dimension of heads.
        peers: Ranks over which the dimension is split.
        dim: The dimension.
    """
    result: Tensor = _NarrowedPart.apply(tensor, peers, dim)  # type: ignore[no-untyped-call]
    return result
