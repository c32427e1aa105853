# SPDX-License-Identifier: Apache-2.0
"""Autograd functions at the borders of a split sequence: each rank has a slice of the positions.

    function    from              to               forward pass     backward pass
    sliced      whole values      slices           this rank's      all-gather
    assembled   slices            whole values     all-gather       this rank's
    scattered   sums in a region  slices           reduce-scatter   all-gather
    gathered    slices            a split region   all-gather       reduce-scatter

The method is that of Megatron-LM (Korthikanti et al., 2022, arXiv 2205.05198, section 4.2.2). The
lengths of slices differ by at most 1; in messages, shorter ones are padded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from smdist.modelparallel.torch.tensor_splits.peers import Peers
from smdist.modelparallel.torch.tensor_splits.region_borders import (
    from_memory_order,
    memory_order,
)


@dataclass(frozen=True, slots=True)
class SequenceSplit:
    """Split of one dimension of a tensor, that of positions, into slices of consecutive ones.

    Attributes:
        peers: Ranks that have the slices, in their order.
        dim: The dimension, counted from 0.
        length: Number of positions of the whole tensor, at least the number of ranks.
    """

    peers: Peers
    dim: int
    length: int

    @property
    def lengths(self) -> list[int]:
        """Numbers of positions of all ranks: the first ranks have one more if there is a rest."""
        least, rest = divmod(self.length, self.peers.size)
        return [least + (rank < rest) for rank in range(self.peers.size)]

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's slice of a whole tensor, a view of it."""
        lengths, rank = self.lengths, self.peers.rank
        return whole.narrow(self.dim, sum(lengths[:rank]), lengths[rank])

    def all_gather(self, part: Tensor) -> Tensor:
        """Return the whole tensor of this rank's slice and those of the other ranks."""
        order = memory_order(part)
        at = order.index(self.dim)
        parts = self.peers.all_gather(self._padded(part.permute(order), at))
        sizes = zip(parts, self.lengths, strict=True)
        found = torch.cat([each.narrow(at, 0, length) for each, length in sizes], at)
        return from_memory_order(found, order)

    def reduce_scatter(self, term: Tensor) -> Tensor:
        """Return this rank's slice of the sum of all ranks' tensors."""
        order = memory_order(term)
        at = order.index(self.dim)
        terms = torch.split(term.permute(order), self.lengths, at)
        found = self.peers.reduce_scatter([self._padded(each, at) for each in terms])
        return from_memory_order(found.narrow(at, 0, self.lengths[self.peers.rank]), order)

    def _padded(self, part: Tensor, dim: int) -> Tensor:
        missing = self.lengths[0] - part.shape[dim]
        if not missing:
            return part.contiguous()
        shape = list(part.shape)
        shape[dim] = missing
        return torch.cat([part, part.new_zeros(shape)], dim)


class _Sliced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, split: SequenceSplit) -> Tensor:
        ctx.split = split
        return split.own(whole).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.split.all_gather(grads[0]), None


class _Scattered(_Sliced):
    @staticmethod
    def forward(ctx: Any, term: Tensor, split: SequenceSplit) -> Tensor:
        ctx.split = split
        return split.reduce_scatter(term)


class _Assembled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, split: SequenceSplit) -> Tensor:
        ctx.split = split
        return split.all_gather(part)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.split.own(grads[0]).contiguous(), None


class _Gathered(_Assembled):
    @staticmethod
    def forward(ctx: Any, part: Tensor, split: SequenceSplit) -> Tensor:
        ctx.save_for_backward(part)  # gathered again for the products that read the whole tensor
        return _Assembled.forward(ctx, part, split)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.split.reduce_scatter(grads[0]), None


def sliced(whole: Tensor, split: SequenceSplit) -> Tensor:
    """Return this rank's slice of a tensor that is whole on every rank, as its gradient is."""
    result: Tensor = _Sliced.apply(whole, split)  # type: ignore[no-untyped-call]
    return result


def assembled(part: Tensor, split: SequenceSplit) -> Tensor:
    """Return the whole tensor of all slices, whose gradient is whole on every rank."""
    result: Tensor = _Assembled.apply(part, split)  # type: ignore[no-untyped-call]
    return result


def scattered(term: Tensor, split: SequenceSplit) -> Tensor:
    """Return this rank's slice of the sum over ranks, at the end of a split region.

    Args:
        term: This rank's share of the sum, with all positions.
        split: Split of the positions.
    """
    result: Tensor = _Scattered.apply(term, split)  # type: ignore[no-untyped-call]
    return result


class Gathering:
    """Whole input of the products at the start of a split region, made of slices of the sequence.

    Each rank has a share of the gradient of the whole input; the backward pass sums them. Products
    within `saving` save this rank's slice of it, and gather it again in the backward pass; several
    products of one input, such as queries, keys and values, gather it once.

    Args:
        part: This rank's slice.
        split: Split of the positions.

    Attributes:
        part: The argument of the same name.
        whole: The whole input, in the autograd graph.
    """

    def __init__(self, part: Tensor, split: SequenceSplit) -> None:
        self.part = part
        cast = _cast_for_products(part)
        self.whole: Tensor = _Gathered.apply(cast, split)  # type: ignore[no-untyped-call]
        self._saved = _SavedSlice(self.whole.grad_fn, split)
        self._storage = self.whole.untyped_storage()._cdata

    def saving(self) -> AbstractContextManager[Any]:
        """Return a context in which views of the whole input are not saved for backward passes."""
        return saved_tensors_hooks(self._pack, _unpacked)

    def _pack(self, tensor: Tensor) -> Tensor | Callable[[], Tensor]:
        if tensor.untyped_storage()._cdata != self._storage:
            return tensor
        return self._saved.view(tensor)


class _SavedSlice:
    """Slice that an autograd node has saved, as any activation is, and its users.

    Args:
        node: Node of `_Gathered`.
        split: Split of the positions.
    """

    def __init__(self, node: Any, split: SequenceSplit) -> None:
        self._node, self._split = node, split
        self._users = self._served = 0
        self._whole: Tensor | None = None

    def view(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Return a function that returns a view of the whole tensor again, of the same layout."""
        self._users += 1
        size, stride, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        return lambda: self._gathered().as_strided(size, stride, offset)

    def _gathered(self) -> Tensor:
        """Return the whole tensor, and forget it when the last user has it."""
        if self._whole is None:
            with torch.no_grad():
                self._whole = self._split.all_gather(self._node.saved_tensors[0])
        found = self._whole
        self._served += 1
        if self._served == self._users:
            self._served, self._whole = 0, None
        return found


def _cast_for_products(part: Tensor) -> Tensor:
    """Return a slice in the type to which autocast would convert the input of a product."""
    device = part.device.type
    if part.dtype is torch.float64 or not torch.is_autocast_enabled(device):
        return part
    return part.to(torch.get_autocast_dtype(device))


def _unpacked(saved: Tensor | Callable[[], Tensor]) -> Tensor:
    return saved if isinstance(saved, Tensor) else saved()
