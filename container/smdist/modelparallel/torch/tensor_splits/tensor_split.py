# SPDX-License-Identifier: Apache-2.0
"""Split of one tensor over the ranks of tensor parallelism: which rows or columns a rank holds.

    c_attn.weight of GPT-2, width 4, 2 ranks     q q q q | k k k k | v v v v
    sections (4, 4, 4): rank 0                   q q     | k k     | v v
                        rank 1                       q q |     k k |     v v

A parameter that is split carries its split as an attribute. Copies of the parameter on the meta
device carry it, too, so code that has only a copy knows the shape of the whole parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from smdist.modelparallel.torch.tensor_splits.peers import Peers

_SPLIT: Final = "_smp_tensor_split"  # attribute of a parameter that is split


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSplit:
    """Split of a tensor along one dimension, over the ranks of tensor parallelism.

    Attributes:
        dim: Dimension of the tensor that is split.
        sections: Lengths of the sections of this dimension. Each section is split by itself, and a
            rank holds its part of every section. A tensor without sections has a single one.
        degree: Number of ranks over which the tensor is split; it divides every section.
        rank: Number of this rank among these ranks.
        peers: These ranks; None if parts are not exchanged by this object.
    """

    dim: int
    sections: tuple[int, ...]
    degree: int
    rank: int
    peers: Peers | None = field(default=None, repr=False, compare=False)

    @property
    def is_contiguous(self) -> bool:
        """True if the part of a rank is one range of rows or columns of the whole tensor."""
        return len(self.sections) == 1

    def part(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole tensor, in its own memory."""
        found = [
            section.chunk(self.degree, self.dim)[self.rank]
            for section in torch.split(whole, list(self.sections), self.dim)
        ]
        return torch.cat(found, self.dim) if len(found) > 1 else found[0].contiguous().clone()

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the whole tensor from the parts of all ranks, in the order of ranks."""
        lengths = [length // self.degree for length in self.sections]
        by_rank = [torch.split(part, lengths, self.dim) for part in parts]
        pieces = [piece for section in zip(*by_rank, strict=True) for piece in section]
        return torch.cat(pieces, self.dim)

    def whole_shape(self, part: Tensor) -> torch.Size:
        """Return the shape of the whole tensor, of which `part` is the part of one rank."""
        shape = list(part.shape)
        shape[self.dim] = sum(self.sections)
        return torch.Size(shape)

    def fits(self, value: Tensor, part: Tensor) -> bool:
        """Return True if `value` has the shape of the whole tensor.

        Args:
            value: Any tensor.
            part: Part of one rank, such as a parameter.
        """
        return value.shape == self.whole_shape(part)


def split_of(tensor: Tensor) -> TensorSplit | None:
    """Return the split of a parameter, of which this rank holds a part; None for a whole one."""
    found = getattr(tensor, _SPLIT, None)
    assert found is None or isinstance(found, TensorSplit)
    return found


def mark(tensor: Tensor, split: TensorSplit) -> None:
    """Record that a tensor is this rank's part of a whole tensor."""
    setattr(tensor, _SPLIT, split)


def unmark(tensor: Tensor) -> None:
    """Record that a tensor is a whole one."""
    tensor.__dict__.pop(_SPLIT, None)


def whole_shape_of(tensor: Tensor) -> torch.Size:
    """Return the shape of a parameter before it was split; of another tensor, its own shape."""
    split = split_of(tensor)
    return tensor.shape if split is None else split.whole_shape(tensor)
