# SPDX-License-Identifier: Apache-2.0
"""Ranks that hold the parts of one tensor, and the collectives between them.

Without messages, a collective returns a tensor of the right shape. So a model can be captured on
tensors without values, and its modules can be timed on one rank alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_silent: list[None] = []  # one element for each open `without_messages` block


class Peers(Protocol):
    """Ranks over which tensors are split."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def rank(self) -> int:
        """Number of this rank."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensors of all ranks; `tensor` may be changed."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in the order of ranks."""

    def reduce_scatter(self, tensors: list[Tensor]) -> Tensor:
        """Return the sum over ranks of the tensor at this rank's number; all have one shape."""


class GroupPeers:
    """Ranks of a process group, as `Peers`.

    Args:
        group: Process group of the ranks that hold the parts of one tensor.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._group.size()

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self._group.rank()

    @property
    def group(self) -> dist.ProcessGroup:
        """Process group of these ranks."""
        return self._group

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensors of all ranks; `tensor` may be changed.

        Without messages, the result is `tensor` itself.
        """
        if not is_silent(tensor):
            dist.all_reduce(tensor, group=self._group)
        return tensor

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in the order of ranks.

        Without messages, each element of the result is `tensor` itself.
        """
        if is_silent(tensor):
            return [tensor] * self.size
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(found, tensor, group=self._group)
        return found

    def reduce_scatter(self, tensors: list[Tensor]) -> Tensor:
        """Return the sum over ranks of the tensor at this rank's number.

        Without messages, the result is this rank's own tensor there.

        Args:
            tensors: Tensors of one shape, one for each rank.
        """
        own = tensors[self.rank]
        if is_silent(own):
            return own
        found = torch.empty_like(own)
        dist.reduce_scatter(found, tensors, group=self._group)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> GroupPeers:
        """Return this object: copies of a model use the same process group."""
        return self


@contextmanager
def without_messages() -> Iterator[None]:
    """Send no messages in collectives of split modules within the block.

    Results have the right shapes and wrong values. One rank alone can then run split modules.
    """
    _silent.append(None)
    try:
        yield
    finally:
        _silent.pop()


def is_silent(tensor: Tensor) -> bool:
    """Return True if collectives of this tensor send no messages now."""
    return bool(_silent) or tensor.is_meta or isinstance(tensor, FakeTensor)
